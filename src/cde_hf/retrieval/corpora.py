"""Reads the documents of a corpus from a file or folder."""

import os
from pathlib import Path

from ..data import load_retrieval_set
from ..data.text_files import read_json_lines, read_lines


def load_documents(path: str | os.PathLike) -> list[str]:
    """
    Reads a corpus.

    Args:
        path (`str` or `os.PathLike`):
            A text file with one document a line; a `.jsonl` file of objects with `text` or `document`, and maybe
            `title`; both also gzipped; or the folder of a retrieval set.

    Returns:
        `list[str]`: The documents; empty lines are passed over, title and text are joined by a space.
    """
    path = Path(path)
    if path.is_dir():
        return list(load_retrieval_set(path).corpus.values())
    if ".jsonl" in path.suffixes:
        return [_document(path, number, fields) for number, fields in read_json_lines(path)]
    return [line.strip() for _, line in read_lines(path) if line.strip()]


def _document(path: Path, number: int, fields: dict) -> str:
    text = fields.get("text", fields.get("document"))
    if not isinstance(text, str):
        raise ValueError(
            f"Line {number} of `{path}` has the fields {sorted(fields)}, but a document is read from `text` or "
            "`document`. Rename the field."
        )
    return f"{fields.get('title') or ''} {text}".strip()


__all__ = ["load_documents"]
