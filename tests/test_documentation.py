"""The code of the quickstart and of the pages on the index, ONNX and the Hub runs as it stands."""

import re
from pathlib import Path

import pytest


DOCS = Path(__file__).parents[1] / "docs"


def run_page(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    return len(blocks), names


def test_the_quickstart(tmp_path, monkeypatch):
    num_blocks, names = run_page("quickstart.md", tmp_path, monkeypatch)
    assert num_blocks == 8
    assert names["trainer"].state.global_step == 3
    assert names["vectors"].shape == (5, 384)
    assert names["index"].search("remember what a function returned", depth=1)[0].document_id == "cache"
    assert names["evaluation"].mean("mine, own context") > 0.3


def test_the_page_on_the_index(tmp_path, monkeypatch):
    pytest.importorskip("qdrant_client")
    num_blocks, names = run_page("index.md", tmp_path, monkeypatch)
    assert num_blocks == 5
    assert "another model or context" in names["message"]
    assert names["drift"].value > 0


def test_the_page_on_the_hub(tmp_path, monkeypatch):
    assert run_page("hub.md", tmp_path, monkeypatch)[0] == 1
    assert "license: apache-2.0" in (tmp_path / "upload" / "README.md").read_text()


@pytest.mark.slow
def test_the_page_on_onnx(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    assert run_page("onnx.md", tmp_path, monkeypatch)[1]["vectors"].shape == (1, 384)
