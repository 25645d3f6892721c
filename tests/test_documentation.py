"""The code of the documentation runs unchanged, its commands parse and its links lead somewhere."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cde_hf import model_path
from cde_hf.cli import build_parser, main


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *DOCS.rglob("*.md")])


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
    assert names["evaluation"].mean(("mine", "own")) > 0.3


def test_the_page_on_contextualize(tmp_path, monkeypatch):
    num_blocks, names = run_page("contextualize.md", tmp_path, monkeypatch)
    assert num_blocks == 3
    assert names["model"].encode(["lift"]).shape == (1, 640)


WITHOUT_THE_PACKAGE = """
import sys
sys.modules["cde_hf"] = None
from transformers import AutoModel, AutoTokenizer
corpus = ["The cat sleeps.", "A dog barks."]
"""


def test_the_page_on_the_method(tmp_path, monkeypatch):
    num_blocks, names = run_page("method.md", tmp_path, monkeypatch)
    assert num_blocks == 2
    assert names["embeddings"].shape == (1, 384)
    block = re.findall(r"```python\n(.*?)```", (DOCS / "method.md").read_text(), re.DOTALL)[1]
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE + block]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False}
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": ""}
    result = subprocess.run(command, cwd=tmp_path, env=environment, **options)
    assert result.returncode == 0, result.stderr
    assert "custom code" not in result.stdout  # it would wait for an answer in a terminal


def test_the_page_on_evaluation(tmp_path, monkeypatch):
    num_blocks, names = run_page("evaluation.md", tmp_path, monkeypatch)
    assert num_blocks == 1
    assert names["evaluation"].mean(("BM25", None)) > 0.3


def test_the_page_on_released_models(fixtures, tmp_path, monkeypatch):
    released, converted = tmp_path / "released", tmp_path / "cde-small-v1"
    shutil.copytree(fixtures / "cde-v1-tiny", released)
    tokenizer = AutoTokenizer.from_pretrained(model_path("minilm"))
    texts = [(DOCS / "released-models.md").read_text()]
    tokenizer.train_new_from_iterator(texts, vocab_size=200).save_pretrained(released)  # the tiny model knows 512
    main(["convert", str(released), str(converted)])
    num_blocks, names = run_page("released-models.md", tmp_path, monkeypatch)
    assert num_blocks == 2
    assert names["queries"].shape[1] == names["documents"].shape[1]
    assert (tmp_path / "cde-small-v1-animals" / "modules.json").is_file()


def test_the_page_on_batches(tmp_path, monkeypatch):
    num_blocks, names = run_page("batching.md", tmp_path, monkeypatch)
    assert num_blocks == 3
    assert len(names["rows"]) == 64


def test_the_page_on_training(tmp_path, monkeypatch):
    num_blocks, names = run_page("training.md", tmp_path, monkeypatch)
    assert num_blocks == 2
    assert names["trainer"].state.global_step == 2
    assert (tmp_path / "model" / "modules.json").exists()
    assert (tmp_path / "own-model" / "modules.json").exists()


def test_the_page_on_search(tmp_path, monkeypatch):
    pytest.importorskip("qdrant_client")
    num_blocks, names = run_page("search.md", tmp_path, monkeypatch)
    assert num_blocks == 6
    assert "another model or context" in names["message"]
    assert names["drift"].value > 0


def test_the_page_on_the_hub(tmp_path, monkeypatch):
    assert run_page("hub.md", tmp_path, monkeypatch)[0] == 1
    assert "license: apache-2.0" in (tmp_path / "upload" / "README.md").read_text()


@pytest.mark.slow
def test_the_page_on_onnx(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    num_blocks, names = run_page("onnx.md", tmp_path, monkeypatch)
    assert num_blocks == 2
    assert names["vectors"].shape == (1, 384)


def test_the_page_on_serving(tmp_path, monkeypatch):
    num_blocks, names = run_page("serving.md", tmp_path, monkeypatch)
    assert num_blocks == 1
    assert len(names["query"]) == len(names["vectors"][0]) == 640


def test_the_reference_shows_docstrings_without_their_marks():
    pytest.importorskip("griffe")
    rewrite = runpy.run_path(str(DOCS / "docstrings.py"))["rewrite"]
    text = "    {}:\n        See [`evaluate`] and [the page](page.md)."
    for old, new in (
        ("size (`int` or `None`, *optional*, defaults to `3`)", "size (int | None, optional)"),
        ("texts (`list[str]`)", "texts (list[str])"),
        ("scores (`Tensor` of shape `(rows, dim)`, *optional*)", "scores (Tensor of shape (rows, dim), optional)"),
    ):
        assert rewrite(text.format(old)) == text.format(new).replace("[`evaluate`]", "`evaluate`")


def heading_anchors(page):
    """What a link to a heading of the page ends with, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("http"):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in heading_anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_parse(page):
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["cde-hf"] and words[1] != "train":  # `test_train` of the examples runs that one
                build_parser().parse_args(words[1:])
