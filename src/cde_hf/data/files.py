"""
Files of rows: JSONL, CSV and Parquet read in a stream, and a cache of Arrow files.

Errors name the file and the line. A file in the cache is either complete or written again.
"""

import csv
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from huggingface_hub.constants import HF_HOME


FILE_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet", ".csv", ".csv.gz")

# A JSON object may omit null fields, so one line does not show all columns.
_LINES_TO_FIND_COLUMNS = 100
_ROWS_PER_BATCH = 1000


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """
    Reads the lines of a UTF-8 file with their line breaks, numbered from 1.

    Args:
        path (`Path`):
            The file, gzipped if its name ends in `.gz`.

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
            f"`{path}` cannot be unpacked after line {number} ({error}). It is incomplete or not a gzip file: fetch "
            "or write it again."
        ) from error


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Reads a file with one JSON object per line. Skips blank lines.

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
                f"Line {number} of `{path}` is not valid JSON ({error}). Every line must hold one JSON object: fix "
                "or remove it."
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"Line {number} of `{path}` holds a JSON {type(row).__name__}, but every line must hold one JSON "
                "object. Fix or remove it."
            )
        yield number, row


def find_data_files(path: Path) -> list[Path]:
    """Returns the file itself, or the data files of a folder in the order of their names. Ignores subfolders."""
    files = [file for file in sorted(path.glob("[!.]*")) if file.is_file()] if path.is_dir() else [path]
    data_files = [file for file in files if file.name.endswith(FILE_ENDINGS)]
    if not data_files:
        raise ValueError(
            f"`{path}` has no data files: found {[file.name for file in files[:10]]}, expected names that end in "
            f"{', '.join(FILE_ENDINGS)}. Convert the data to one of these."
        )
    return data_files


def file_ending(path: Path) -> str:
    """Returns the ending of a data file's name, with `.gz`."""
    return next(ending for ending in FILE_ENDINGS if path.name.endswith(ending))


def read_columns(path: Path) -> list[str]:
    """Returns the columns of a data file. For a JSONL file it reads the first 100 lines."""
    if path.name.endswith(".parquet"):
        return _open_parquet(path).schema_arrow.names
    if path.name.endswith((".csv", ".csv.gz")):
        return next((fields for _, fields in _read_csv_fields(path)), [])
    first_rows = islice(read_json_lines(path), _LINES_TO_FIND_COLUMNS)
    return list(dict.fromkeys(column for _, row in first_rows for column in row))


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Reads the rows of a data file.

    Args:
        path (`Path`):
            The file.
        columns (`Sequence[str]`):
            The columns that are needed. Rows may lack other columns.

    Returns:
        `Iterator[tuple[int, dict[str, Any]]]`: Rows with the number of their line, or in Parquet of the row, from 1.
    """
    if path.name.endswith(".parquet"):
        return _read_parquet_rows(path, columns)
    if path.name.endswith((".csv", ".csv.gz")):
        return _read_csv_rows(path)
    return read_json_lines(path)


def default_cache_folder() -> Path:
    """Returns the default folder of the cache: `cde_hf` in the Hugging Face cache."""
    return Path(HF_HOME) / "cde_hf"


def cache_key(*facts: Any) -> str:
    """Hashes JSON-like facts, the same in every process."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()


def cached_dataset(
    folder: str | os.PathLike | None, name: str, write: Callable[[Path], dict[str, Any]]
) -> tuple[Dataset, dict[str, Any]]:
    """
    Opens the memory-mapped dataset of this name. Writes it first if it is missing or incomplete.

    The rows are in `name.arrow`, the facts in `name.json`. The facts are written last and hold the size of the rows'
    file, which shows whether it is complete.

    Args:
        folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
            Folder of the files.
        name (`str`):
            Name of the files. It must change with the data.
        write (`Callable`):
            Writes an Arrow stream to the path it is given and returns the facts, which must be JSON-serialisable.

    Returns:
        `tuple[Dataset, dict[str, Any]]`: The dataset and the facts.
    """
    folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
    rows_file, facts_file = folder / f"{name}.arrow", folder / f"{name}.json"
    facts = _facts_of_complete_file(rows_file, facts_file)
    if facts is None:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary_folder:
            new_rows_file, new_facts_file = (
                Path(temporary_folder, rows_file.name),
                Path(temporary_folder, "facts.json"),
            )
            facts = write(new_rows_file)
            sealed = {"num_bytes": new_rows_file.stat().st_size, "facts": facts}
            new_facts_file.write_text(json.dumps(sealed), encoding="utf-8")
            os.replace(new_rows_file, rows_file)
            os.replace(new_facts_file, facts_file)
    return Dataset.from_file(str(rows_file)), facts


def write_rows(rows: Iterable[dict[str, Any]], path: Path, schema: pa.Schema) -> None:
    """Writes rows to an Arrow stream, with at most one batch of them in memory."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        batch = []
        for row in rows:
            batch.append(row)
            if len(batch) == _ROWS_PER_BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
                batch.clear()
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))


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
            f"Line {reader.line_num} of `{path}` is not valid CSV ({error}). Fix it, or use JSONL."
        ) from error


def _read_parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    file = _open_parquet(path)
    selected = [name for name in columns if name in file.schema_arrow.names]
    batches = file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=selected)
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
        raise ValueError(f"`{path}` is not a complete Parquet file ({error}). Fetch or write it again.") from error


def _facts_of_complete_file(rows_file: Path, facts_file: Path) -> dict[str, Any] | None:
    try:
        sealed = json.loads(facts_file.read_text(encoding="utf-8"))
        is_complete = rows_file.stat().st_size == sealed["num_bytes"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return sealed["facts"] if is_complete else None


__all__ = [
    "FILE_ENDINGS",
    "cache_key",
    "cached_dataset",
    "default_cache_folder",
    "file_ending",
    "find_data_files",
    "read_columns",
    "read_json_lines",
    "read_lines",
    "read_rows",
    "write_rows",
]
