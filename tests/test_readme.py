"""The code of the README runs as it stands, and what it links to is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cde_hf.cli import build_parser


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_blocks_run_in_their_order(tmp_path):
    script = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\bmake ([a-z-]+)", (ROOT / name).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_commands_are_there():
    commands = build_parser()._subparsers._group_actions[0].choices
    for command in re.findall(r"`?cde-hf ([a-z]+) ", README):
        assert command in commands, command
