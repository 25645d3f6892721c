"""Lines of text files, plain or gzipped, with errors that name the file and the line."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """
    Lines of a UTF-8 file with their line breaks, numbered from 1.

    Args:
        path (`Path`):
            The file. One whose name ends in `.gz` is unpacked on the fly.

    Returns:
        `Iterator[tuple[int, str]]`: Line numbers and lines.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Line {number} of `{path}` is not UTF-8: byte {error.object[error.start]:#04x} at column {error.start}. "
            "Convert the file to UTF-8."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"`{path}` cannot be unpacked after line {number} ({error}). It is torn or no gzip file: fetch or write "
            "it again."
        ) from error


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Objects of a file that has one JSON object a line. Blank lines are passed over.

    Args:
        path (`Path`):
            The file, gzipped if its name ends in `.gz`.

    Returns:
        `Iterator[tuple[int, dict[str, Any]]]`: Line numbers and objects.
    """
    for number, line in read_lines(path):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"Line {number} of `{path}` is not valid JSON ({error}). Every line must hold one JSON object: mend "
                "or remove it."
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"Line {number} of `{path}` holds a JSON {type(row).__name__}, but every line must hold one JSON "
                "object. Mend or remove it."
            )
        yield number, row


__all__ = ["read_json_lines", "read_lines"]
