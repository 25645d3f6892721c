"""Reads the documents of a corpus from a file or folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from .files import read_json_lines, read_lines
from .retrieval_sets import load_retrieval_set


def load_documents(path: str | os.PathLike) -> list[str]:
    """
    Reads a corpus.

    Args:
        path (`str` or `os.PathLike`):
            A text file with one document per line, a `.jsonl` file of objects with `text` or `document` and an
            optional `title`, or the folder of a retrieval set. Both kinds of file may be gzipped.

    Returns:
        `list[str]`: The documents. Empty lines are skipped. Title and text are joined by a space.
    """
    return [text for _, text in _named_documents(Path(path))]


def load_corpus(path: str | os.PathLike) -> dict[str, str]:
    """
    Reads a corpus with the ids of its documents.

    Args:
        path (`str` or `os.PathLike`):
            As for [`load_documents`].

    Returns:
        `dict[str, str]`: The documents by their ids. The id is `_id` or `id` in a `.jsonl` file or retrieval set, and
        otherwise the number of the document, from `"0"`.
    """
    corpus: dict[str, str] = {}
    for number, (name, text) in enumerate(_named_documents(Path(path))):
        identifier = str(number) if name is None else name
        if identifier in corpus:
            raise ValueError(
                f"Two documents of `{path}` have the id `{identifier}`. Give each document an id of its own."
            )
        corpus[identifier] = text
    return corpus


def _named_documents(path: Path) -> Iterator[tuple[str | None, str]]:
    if path.is_dir():
        yield from load_retrieval_set(path).corpus.items()
    elif ".jsonl" in path.suffixes:
        for number, fields in read_json_lines(path):
            name = fields.get("_id", fields.get("id"))
            yield None if name is None else str(name), _document(path, number, fields)
    else:
        yield from ((None, line.strip()) for _, line in read_lines(path) if line.strip())


def _document(path: Path, number: int, fields: dict) -> str:
    text = fields.get("text", fields.get("document"))
    if not isinstance(text, str):
        raise ValueError(
            f"Line {number} of `{path}` has the fields {sorted(fields)}, but a document is read from `text` or "
            "`document`. Rename the field."
        )
    return f"{fields.get('title') or ''} {text}".strip()


__all__ = ["load_corpus", "load_documents"]
