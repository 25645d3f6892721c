"""Files that are whole or not there."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Writes a file, which replaces an older one only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON."""
    write_text(path, json.dumps(value, indent=1))


def derive_folder(folder: Path, target: Path, change: Callable[[Path], None]) -> Path:
    """
    A copy of a folder with some of its files changed, made once. Returns it.

    Args:
        folder (`Path`):
            What to copy.
        target (`Path`):
            Name of the copy.
        change (`Callable[[Path], None]`):
            Works on the copy, whose files are links: it must replace them, not write into them.
    """
    if not target.exists():
        unfinished = target.with_name(f"{target.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(folder, unfinished, copy_function=os.link)
        change(unfinished)
        unfinished.rename(target)
    return target
