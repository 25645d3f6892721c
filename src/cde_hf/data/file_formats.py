"""Columns and rows of JSONL, CSV and Parquet files, read in a stream."""

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .text_files import read_json_lines, read_lines


FILE_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet", ".csv", ".csv.gz")

# A JSON object may leave out what is null, so one line is not enough to know the columns.
_LINES_TO_FIND_COLUMNS = 100
_PARQUET_ROWS_PER_BATCH = 1000


def find_data_files(path: Path) -> list[Path]:
    """The file itself, or the data files of a folder in the order of their names. Subfolders are not looked into."""
    files = [file for file in sorted(path.glob("[!.]*")) if file.is_file()] if path.is_dir() else [path]
    data_files = [file for file in files if file.name.endswith(FILE_ENDINGS)]
    if not data_files:
        raise ValueError(
            f"`{path}` has no data files: found {[file.name for file in files[:10]]}, expected names that end in "
            f"{', '.join(FILE_ENDINGS)}. Convert the data to one of these."
        )
    return data_files


def file_ending(path: Path) -> str:
    """The ending of a data file's name, with `.gz`."""
    return next(ending for ending in FILE_ENDINGS if path.name.endswith(ending))


def read_columns(path: Path) -> list[str]:
    """Names of the columns of a data file; of a JSONL file, those found in its first lines."""
    if path.name.endswith(".parquet"):
        return _open_parquet(path).schema_arrow.names
    if path.name.endswith((".csv", ".csv.gz")):
        return next((fields for _, fields in _read_csv_fields(path)), [])
    first_rows = islice(read_json_lines(path), _LINES_TO_FIND_COLUMNS)
    return list(dict.fromkeys(column for _, row in first_rows for column in row))


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Rows of a data file.

    Args:
        path (`Path`):
            The file.
        columns (`Sequence[str]`):
            The columns that are needed; others may be left out of the rows.

    Returns:
        `Iterator[tuple[int, dict[str, Any]]]`: Rows with the number of their line, or in Parquet of the row, from 1.
    """
    if path.name.endswith(".parquet"):
        return _read_parquet_rows(path, columns)
    if path.name.endswith((".csv", ".csv.gz")):
        return _read_csv_rows(path)
    return read_json_lines(path)


def _read_csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    records = _read_csv_fields(path)
    _, header = next(records, (0, []))
    for number, fields in records:
        if len(fields) != len(header):
            raise ValueError(
                f"Line {number} of `{path}` has {len(fields)} fields, but the header has {len(header)}. Put texts "
                "that hold commas or line breaks into double quotes."
            )
        yield number, dict(zip(header, fields, strict=True))


def _read_csv_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line for _, line in read_lines(path)), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(
            f"Line {reader.line_num} of `{path}` is not valid CSV ({error}). Mend it, or use JSONL."
        ) from error


def _read_parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    file = _open_parquet(path)
    selected = [name for name in columns if name in file.schema_arrow.names]
    batches = file.iter_batches(batch_size=_PARQUET_ROWS_PER_BATCH, columns=selected)
    number = 0
    try:
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield number, row
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"`{path}` cannot be read after row {number} ({error}). Fetch or write it again.") from error


def _open_parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"`{path}` is not a whole Parquet file ({error}). Fetch or write it again.") from error


__all__ = ["FILE_ENDINGS", "file_ending", "find_data_files", "read_columns", "read_rows"]
