"""Tiny runs for the tests of this folder."""

import importlib.util
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
