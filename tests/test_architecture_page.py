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


@pytest.mark.parametrize(
    ("modules", "number", "most_lines"),
    [
        (["frequency_pooling"], "three", 850),
        (["corpus_part"], "five", 1400),
        (["sentence_transformers_cde"], "eight", 2200),
        (["sentence_transformers_cde", "corpus_part"], "eleven", 3000),
    ],
)
def test_a_checkpoint_carries_few_files(modules, number, most_lines):
    files = {PACKAGE / "modeling" / f"{module}.py" for module in modules}
    files |= {Path(name) for path in list(files) for name in get_relative_import_files(path)}
    assert len(files) == {"three": 3, "five": 5, "eight": 8, "eleven": 11}[number]
    assert number in PAGE
    assert sum(len(file.read_text().splitlines()) for file in files) <= most_lines


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_longer_than_420_lines(path):
    assert len(path.read_text().splitlines()) <= 420
