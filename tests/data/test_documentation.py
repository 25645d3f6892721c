"""The code of the documentation page on data."""

import re
from pathlib import Path

from cde_hf.data import files


PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "HF_HOME", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 6
    assert names["prompts"].apply(names["pairs"][:1])["query"][0].startswith("search_query: ")
    assert [retrieval_set.name for retrieval_set in names["retrieval_sets"]] == ["pydantic"]
    assert names["animals"].name == "animals"
    assert names["documents"] == list(names["animals"].corpus.values())
