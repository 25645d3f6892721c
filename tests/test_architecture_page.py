"""The page on the architecture: it names files that exist, in the order of the import rules."""

import re
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_relative_import_files


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cde_hf"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_that_it_names_exists():
    names = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(names) > 25
    assert not [name for name in names if not (PACKAGE / name).is_file()]


@pytest.mark.parametrize(("module", "most"), [("corpus_part", 5), ("sentence_transformers_cde", 9)])
def test_a_checkpoint_carries_few_files(module, most):
    path = PACKAGE / "modeling" / f"{module}.py"
    files = {path, *(Path(name) for name in get_relative_import_files(path))}
    assert len(files) <= most
    assert sum(len(file.read_text().splitlines()) for file in files) <= 2350
    assert {5: "five", 9: "nine"}[len(files)] in PAGE
