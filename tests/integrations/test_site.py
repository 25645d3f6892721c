"""The documentation site builds as it is, and does not with a broken link or an undocumented name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


pytest.importorskip("mkdocs")

ROOT = Path(__file__).parents[2]
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml", "docs", "examples", "src")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("README.md", "", "", ""),
        ("docs/hub.md", "", "[gone](gone.md)\n", "gone.md"),
        ("docs/hub.md", "", "![gone](gone.svg)\n", "gone.svg"),
        ("docs/hub.md", "", "[gone](search.md#no-such-heading)\n", "no-such-heading"),
        (
            "src/cde_hf/__init__.pyi",
            "from .hub",
            "from .files import _hash_of_manifest as _hash_of_manifest\nfrom .hub",
            "_hash_of_manifest",
        ),
    ],
    ids=["nothing", "link", "image", "anchor", "public name"],
)
def test_a_fault_is_found(tmp_path, file, old, new, message):
    for name in NAMES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    page = tmp_path / file
    page.write_text(page.read_text().replace(old, new, 1))
    command = [sys.executable, str(tmp_path / "docs" / "build.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode != 0) == bool(message), result.stderr
    assert message in result.stderr
    assert message or (tmp_path / "build" / "site" / "index.html").is_file()
