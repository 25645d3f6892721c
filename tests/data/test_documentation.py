"""The code of the documentation page on data."""

import re
from pathlib import Path

import datasets


PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 6
    assert names["prompts"].apply(names["pairs"][:1])["query"][0].startswith("search_query: ")
    assert [retrieval_set.name for retrieval_set in names["retrieval_sets"]] == ["pydantic"]
    assert names["animals"].name == "animals"
    assert names["documents"] == list(names["animals"].corpus.values())
