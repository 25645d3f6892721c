"""The CUDA twin: functions of `scenarios.py` run in a process that believes it has a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch


collect_ignore = ["scenarios.py", "twin.py"]  # they import each other by name, in that process alone

FOLDER = Path(__file__).parent

RUN = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1])  # before torch is imported
sys.path.insert(0, sys.argv[2])
import scenarios, twin
twin.install()
result = getattr(scenarios, sys.argv[3])(**json.loads(sys.argv[4]))
print(json.dumps(result))
"""


@pytest.fixture(scope="session")
def cuda_guard(tmp_path_factory):
    """Library that makes PyTorch accept CUDA tensors."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("The CUDA twin is built with `g++`, which is not installed.")
    torch_folder = Path(torch.__file__).parent
    library = tmp_path_factory.mktemp("cuda_twin") / "guard.so"
    headers, libraries = torch_folder / "include", torch_folder / "lib"
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{headers}", f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command = [compiler, *options, str(FOLDER / "guard.cpp"), "-o", str(library), "-lc10", "-ltorch_cpu"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-5000:]
    return library


@pytest.fixture
def run_on_cuda_twin(cuda_guard, tmp_path):
    """Function that runs a function of `scenarios.py` by its name, with arguments, and gives its result."""

    def run(name, **arguments):
        command = [sys.executable, "-c", RUN, str(cuda_guard), str(FOLDER), name, json.dumps(arguments)]
        environment = {**os.environ, "HF_HOME": str(tmp_path)}
        environment.pop("ACCELERATE_USE_CPU", None)  # other tests set it where there is no GPU
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[-5000:]
        return json.loads(result.stdout.splitlines()[-1])

    return run
