"""Tiny runs for the tests of this folder."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny():
    """The module `tiny_runs`."""
    return _load("tiny_runs")


@pytest.fixture(scope="session")
def plan_folder(tiny, tmp_path_factory):
    """Folder of the plan of the pairs without hard negatives."""
    return str(tiny.make_plan(tiny.make_pairs(), tmp_path_factory.mktemp("plan") / "plan").folder)


@pytest.fixture(scope="session")
def negatives_plan_folder(tiny, tmp_path_factory):
    """Folder of the plan of the pairs with up to two hard negatives each."""
    pairs = tiny.make_pairs(num_negatives=2)
    return str(tiny.make_plan(pairs, tmp_path_factory.mktemp("plan") / "plan").folder)


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    """Function that runs cases of `tiny_runs` on several processes and gives the folder of their results."""

    def run(cases, num_processes, command=None):
        folder = tmp_path_factory.mktemp("launch")
        (folder / "cases.json").write_text(json.dumps(cases))
        script = [str(Path(__file__).with_name("tiny_runs.py")), str(folder / "cases.json"), str(folder)]
        command = command or [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        processes = f"--nproc_per_node={num_processes}"
        result = subprocess.run([*command, processes, *script], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[-5000:]
        return folder

    return run
