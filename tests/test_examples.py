"""Every example runs, with tiny arguments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer


EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments, folder):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = {**os.environ, "HF_HOME": str(folder / "home")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_in_the_table(path):
    assert len(path.read_text().splitlines()) <= 110
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text()


def test_sentence_transformers_batches(tmp_path):
    arguments = [
        "--output",
        "model",
        "--steps",
        "2",
        "--batch-size",
        "8",
        "--cluster-size",
        "32",
        "--max-length",
        "16",
    ]
    output = run("sentence_transformers_batches.py", *arguments, "--libraries", "joblib", "requests", folder=tmp_path)
    assert "train_loss" in output
    assert SentenceTransformer(str(tmp_path / "model"), device="cpu").encode("text").shape == (384,)
