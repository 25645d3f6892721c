"""Every example runs, with tiny arguments."""

import json
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


def test_bertopic_topics(tmp_path):
    pytest.importorskip("bertopic")
    options = ["--libraries", "joblib", "--documents", "60", "--topics", "3"]
    output = run("bertopic_topics.py", *options, folder=tmp_path)
    counts = [int(line.split()[1]) for line in output.splitlines()[-3:]]
    assert sum(counts) == 60


def test_retrieval_evaluator(tmp_path):
    output = run("retrieval_evaluator.py", "--library", "joblib", folder=tmp_path)
    scores = [float(line.split()[-1]) for line in output.splitlines()[-2:]]
    assert all(20 < score < 100 for score in scores) and scores[0] != scores[1]


def test_hard_negatives(tmp_path):
    output = run("hard_negatives.py", "--library", "joblib", "--pairs", "60", folder=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "pairs_with_negatives.jsonl").read_text().splitlines()]
    assert f"{len(rows)} of 60 pairs" in output and len(rows) > 10
    assert all(len(row["negatives"]) == 2 and row["document"] not in row["negatives"] for row in rows)


@pytest.mark.parametrize("name", ["bertopic_topics.py", "retrieval_evaluator.py", "hard_negatives.py"])
def test_a_pipeline_fits_on_one_screen(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 60
