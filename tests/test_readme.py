"""The README is short, its code runs unchanged, and the commands that it names exist."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_blocks_run_in_their_order(tmp_path):
    pairs = [{"query": f"What is number {n}?", "document": f"Number {n} comes after {n - 1}."} for n in range(300)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    script = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "my-corpus-model").is_dir()
    assert result.stdout == re.search(r"```text\n(.*?)```", README, re.DOTALL)[1]


def test_it_is_short():
    assert len(README.split()) <= 1000


def test_the_first_code_comes_early():
    assert len(README.split("```python")[0].split()) <= 150


def test_the_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    assert "make train" in README and "make test" in README
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\bmake ([a-z-]+)", (ROOT / name).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
