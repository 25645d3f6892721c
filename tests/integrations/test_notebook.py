"""The notebook runs from top to bottom and says what it says when it was saved."""

import re
from pathlib import Path

import pytest


nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "adapt_to_your_corpus.ipynb"


def outputs(notebook):
    """What each cell of code prints; progress bars and warnings are on the other stream."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.text for output in cell.outputs if output.get("name") == "stdout") for cell in cells]


def test_it_runs_and_its_outputs_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    saved = nbformat.read(NOTEBOOK, as_version=4)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()
    assert [bool(text) for text in outputs(notebook)] == [bool(text) for text in outputs(saved)]
    assert outputs(saved)[1] == outputs(notebook)[1] == "384 -> 640 dimensions\n"
    assert outputs(saved)[-1] == outputs(notebook)[-1] == "the same vector: True\n"
    better, worse = re.search(r"better for (\d+) queries, worse for (\d+)", outputs(notebook)[-2]).groups()
    assert int(better) > int(worse)
