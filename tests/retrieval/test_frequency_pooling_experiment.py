"""The experiment on context-frequency pooling, with tiny data."""

import gzip
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from cde_hf.data import RetrievalSet, save_retrieval_set


SCRIPT = Path(__file__).parents[2] / "experiments" / "frequency_pooling.py"
ANIMALS = {"cats": "sleep on sofas", "dogs": "bark at night", "whales": "sing in the sea", "owls": "hunt for mice"}


@pytest.fixture
def data(tmp_path):
    """Folder with four training domains and four evaluation sets."""
    (tmp_path / "data" / "train").mkdir(parents=True)
    for name in ("north", "east", "south", "west"):
        documents = {animal: f"In the {name} the {animal} {habit}." for animal, habit in ANIMALS.items()}
        with gzip.open(tmp_path / "data" / "train" / f"{name}_zoo.jsonl.gz", "wt") as file:
            for animal, document in documents.items():
                file.write(json.dumps({"query": f"What do {animal} do?", "document": document}) + "\n")
        queries = {animal: f"What do {animal} do?" for animal in ANIMALS}
        qrels = {animal: {animal: 1} for animal in ANIMALS}
        save_retrieval_set(RetrievalSet(name, documents, queries, qrels), tmp_path / "data" / "eval" / name)
    return tmp_path / "data"


@pytest.mark.slow
def test_the_experiment_writes_its_tables(data, tmp_path):
    command = [sys.executable, str(SCRIPT), "--data", str(data), "--output", str(tmp_path / "tables.md")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "tables.md").read_text()
    assert "| a = 0.2, 64 documents | " in text
    assert "| north | 4 | 4 | " in text
    assert "| own, queries only | " in text


def test_the_table_of_libraries_has_their_means():
    experiment = runpy.run_path(str(SCRIPT))
    ways = [experiment[name] for name in ("PLAIN", "OWN", "FOREIGN", "STEEP_OWN", "STEEP_FOREIGN")]
    ways += [f"{way}, {experiment['SPECIAL']}" for way in ways[-2:]]
    results = {
        way: {"north": {"q1": 0.1 * number, "q2": 0.3}, "south": {"q3": 0.5}} for number, way in enumerate(ways)
    }
    lines = list(experiment["libraries_table"](results))
    assert lines[3] == "| north | 15.0 | 20.0 | 25.0 | 30.0 | 35.0 | 40.0 | 45.0 |"
    assert lines[-1] == "| **mean** | 32.5 | 35.0 | 37.5 | 40.0 | 42.5 | 45.0 | 47.5 |"
