"""
One path from any source to rows: a file, a folder of files, a dataset in memory, on disk or on the Hub.

1. `open_tables` finds what a source names: a table for each file, or one for a dataset.
2. `Table.read` streams the rows of a table. Each comes with its place for messages, such as "line 3 of `faq.csv`".

`datasets.load_dataset` loads from the Hub. Local CSV and JSON are parsed by Python itself, because the readers of
`datasets` turn texts that look like dates into dates, shift the columns of a CSV row with a comma too many, know no
line numbers, and end the process on deeply nested JSON.
"""

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import (
    Dataset,
    DatasetDict,
    IterableDataset,
    IterableDatasetDict,
    Value,
    load_dataset,
    load_from_disk,
)
from transformers.utils import logging

from ..messages import kind_of


logger = logging.get_logger(__name__)

Rows = Iterator[tuple[str, dict[str, Any]]]

# The files of a folder are those of the first group that it has: a README.md beside tables is no data.
_ENDINGS: tuple[tuple[str, ...], ...] = ((".jsonl", ".csv", ".tsv", ".parquet"), (".json",), (".txt", ".md"))
_ALL_ENDINGS = tuple(ending for group in _ENDINGS for ending in group)
_SAVED_FILES = ("dataset_info.json", "state.json")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_TEXT_TYPES = ("string", "large_string", "string_view")
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
_SHARD_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")
# A JSON object may omit null fields, so one row does not show all columns.
_ROWS_TO_FIND_COLUMNS = 100
_ROWS_PER_BATCH = 1000


@dataclass(frozen=True)
class Table:
    """
    One file or dataset, read row by row.

    Args:
        name (`str`, *optional*):
            Name without ending and shard number. `None` for a dataset in memory, which has no name.
        place (`str`):
            Its name in messages.
        columns (`Mapping[str, bool]`):
            Its columns, and whether each holds texts.
        identity (`str`):
            Changes when the rows change.
        read (`Callable`):
            Takes the columns that are needed and returns an iterator over rows, each with its place.
        dataset (`datasets.Dataset`, *optional*):
            The dataset, if it is one.
    """

    name: str | None
    place: str
    columns: Mapping[str, bool]
    identity: str
    read: Callable[[Collection[str]], Rows]
    dataset: Dataset | None = None


def open_tables(source: str | os.PathLike | Dataset, split: str = "train") -> list[Table]:
    """
    Opens the tables of a source.

    Args:
        source (`str`, `os.PathLike` or `datasets.Dataset`):
            A JSONL, JSON, CSV, TSV, Parquet or text file, gzipped or not; a folder of such files, of which each text
            file is one row; a folder that `save_to_disk` wrote; the name of a dataset on the Hub; or a dataset.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a dataset on disk or on the Hub.

    Returns:
        `list[Table]`: One table for each file, in the order of their names, or one for the dataset.
    """
    if not isinstance(source, str | os.PathLike):
        expect_dataset(source, "source")
        return [_dataset_table(source, None)]
    path = Path(source).expanduser()
    if os.path.exists(path):  # not `Path.exists`, which raises an error if a text is too long for a file name
        if (path / "dataset_dict.json").is_file() or all((path / name).is_file() for name in _SAVED_FILES):
            return [_dataset_table(_load_saved(path, split), path.resolve().name, str(path))]
        if split != "train":
            raise ValueError(
                f"`split={split!r}` was given, but only datasets on disk or on the Hub have splits. Leave it out."
            )
        return _open_folder(path) if path.is_dir() else [_file_table(path)]
    name = str(source)
    if isinstance(source, os.PathLike) or not _HUB_NAME.fullmatch(name) or name.endswith((*_ALL_ENDINGS, ".gz")):
        raise FileNotFoundError(
            f"There is no file or folder {name[:300]!r}. Check the path. A text is passed in a list: `[text]`."
        )
    logger.warning(f"There is no file or folder `{name}`, so the dataset of this name is loaded from the Hub.")
    try:
        dataset = load_dataset(name, split=split)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"`{name}` is no local file or folder, and could not be loaded from the Hub ({error}). Check the name "
            "and the connection to the Hub."
        ) from error
    return [_dataset_table(dataset, name)]


def find_file(folder: Path, stem: str) -> Path | None:
    """Returns the table with this name in a folder, in whatever format, or `None` if there is none."""
    candidates = (folder / f"{stem}{ending}{gz}" for ending in _ENDINGS[0] + _ENDINGS[1] for gz in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def expect_dataset(value: Any, argument: str) -> None:
    """Raises a `TypeError` that guesses the intent, unless the value is a `datasets.Dataset`."""
    if isinstance(value, Dataset):
        return
    received = f"`{argument}` must be a `datasets.Dataset`, got {kind_of(value)}"
    if isinstance(value, DatasetDict | IterableDatasetDict):
        split = "train" if "train" in value else next(iter(value), "train")
        raise TypeError(f"{received} with the splits {list(value)}. Did you mean `dataset['{split}']`?")
    if isinstance(value, IterableDataset):
        raise TypeError(f"{received}. Load it without `streaming=True`.")
    raise TypeError(f"{received}. Use `load_pairs` for files, `Dataset.from_dict` for lists.")


def is_text(feature: Any) -> bool:
    """Whether a column with this feature holds texts."""
    return isinstance(feature, Value) and feature.dtype in _TEXT_TYPES


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Reads the lines of a UTF-8 file, gzipped or not, with their line breaks. They are numbered from 1."""
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


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _open_folder(folder: Path) -> list[Table]:
    files = [file for file in sorted(folder.glob("[!.]*")) if file.is_file()]
    for endings in _ENDINGS:
        if found := [file for file in files if _ending(file) in endings]:
            # The text files of a folder are its documents.
            return [_text_folder(folder, found)] if endings is _ENDINGS[-1] else list(map(_file_table, found))
    raise ValueError(
        f"`{folder}` has no data files: found {[file.name for file in files[:10]]}, expected names that end in "
        f"{', '.join(_ALL_ENDINGS)}. Convert the data to one of these."
    )


def _file_table(path: Path) -> Table:
    ending, status = _ending(path), path.stat()
    name = _SHARD_NUMBER.sub("", Path(path.name.removesuffix(".gz")).stem)
    read: Callable[[Collection[str]], Rows]
    if ending == ".parquet":
        columns = {field.name: _holds_texts(field.type) for field in open_parquet(path).schema_arrow}
        read = lambda needed: _parquet_rows(path, needed)  # noqa: E731
    elif ending in _ALL_ENDINGS:
        parse = {".jsonl": _json_lines, ".json": _json_rows, ".csv": _csv_rows, ".tsv": _csv_rows}.get(ending, _lines)
        columns = _sample_columns(parse(path))
        read = lambda needed: parse(path)  # noqa: E731
    else:
        raise ValueError(
            f"`{path}` has the ending `{path.suffix}`, but must have one of {', '.join(_ALL_ENDINGS)}. Convert it, "
            "or rename it to `.txt` if every line is one document."
        )
    return Table(name, str(path), columns, f"{path.resolve()} {status.st_size} {status.st_mtime_ns}", read)


def _holds_texts(kind: pa.DataType) -> bool:
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind) in _TEXT_TYPES


def _sample_columns(rows: Rows) -> dict[str, bool]:
    columns: dict[str, bool] = {}
    for _, row in islice(rows, _ROWS_TO_FIND_COLUMNS):
        columns.update({name: columns.get(name, False) or isinstance(value, str) for name, value in row.items()})
    return columns


def _text_folder(folder: Path, files: list[Path]) -> Table:
    def read(needed: Collection[str]) -> Rows:
        for file in files:
            text = "".join(line for _, line in read_lines(file)).strip()
            if text:
                yield f"`{file}`", {"_id": file.name, "text": text}

    identity = " ".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    columns = {"_id": True, "text": True}
    return Table(folder.resolve().name, str(folder), columns, f"{folder.resolve()} {identity}", read)


def _dataset_table(dataset: Dataset, name: str | None, place: str | None = None) -> Table:
    place = place or name or "the dataset"

    def read(needed: Collection[str]) -> Rows:
        selected = dataset.with_format(None).select_columns([name for name in needed if name in dataset.column_names])
        batches = selected.iter(batch_size=_ROWS_PER_BATCH)
        rows = (
            dict(zip(batch, values, strict=True)) for batch in batches for values in zip(*batch.values(), strict=True)
        )
        yield from _numbered(rows, place)

    columns = {column: is_text(feature) for column, feature in dataset.features.items()}
    return Table(name, place, columns, dataset._fingerprint, read, dataset)


def _load_saved(folder: Path, split: str) -> Dataset:
    try:
        saved = load_from_disk(folder)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"`{folder}` is not a complete dataset of `save_to_disk` ({error}). Save it again."
        ) from error
    if isinstance(saved, Dataset):
        return saved
    if split not in saved:
        raise ValueError(f"`{folder}` has no split `{split}`, but {list(saved)}. Give the folder of one of these.")
    return saved[split]


def _lines(path: Path) -> Rows:
    for number, line in read_lines(path):
        if line.strip():
            yield f"line {number} of `{path}`", {"text": line.strip()}


def _json_lines(path: Path) -> Rows:
    for number, line in read_lines(path):
        if not line.isspace():
            row = _parse_json(line, f"Line {number} of `{path}`")
            if not isinstance(row, dict):
                raise ValueError(
                    f"Line {number} of `{path}` holds {kind_of(row)}, but every line must hold one JSON object. "
                    "Fix or remove it."
                )
            yield f"line {number} of `{path}`", row


def _json_rows(path: Path) -> Rows:
    """Reads an array of objects or texts, or an object a line, for which this ending is used too."""
    first = next((line.strip() for _, line in read_lines(path) if line.strip()), "")
    if not first.startswith("["):
        yield from _json_lines(path)
        return
    for number, row in enumerate(_parse_json("".join(line for _, line in read_lines(path)), f"`{path}`"), start=1):
        if not isinstance(row, dict | str):
            raise ValueError(f"Row {number} of `{path}` is {kind_of(row)}, but must be an object or a text. Fix it.")
        yield f"row {number} of `{path}`", row if isinstance(row, dict) else {"text": row}


def _numbered(rows: Iterable[dict[str, Any]], place: str) -> Rows:
    for number, row in enumerate(rows, start=1):
        yield f"row {number} of `{place}`", row


def _parse_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place} is not valid JSON ({error}). A `.jsonl` file has one object per line: fix or remove it."
        ) from error


def _csv_rows(path: Path) -> Rows:
    csv.field_size_limit(2**31 - 1)  # the default refuses texts of more than 131,072 characters
    lines = (line for _, line in read_lines(path))
    first, delimiter = next(lines, ""), _DELIMITERS[_ending(path)]
    if delimiter not in first and ";" in first:  # what spreadsheets write where the comma is in numbers
        delimiter = ";"
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for fields in filter(None, reader):
            if header is None:
                header = fields
                if len(set(header)) < len(header):
                    raise ValueError(f"`{path}` has two columns of one name: {header}. Rename one of them.")
            elif len(fields) != len(header):
                raise ValueError(
                    f"Line {reader.line_num} of `{path}` has {len(fields)} fields, but the header has {len(header)}. "
                    "Put texts that hold commas, tabs or line breaks into double quotes."
                )
            else:
                yield f"line {reader.line_num} of `{path}`", dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise ValueError(
            f"Line {reader.line_num} of `{path}` is not valid CSV ({error}). Fix it, or use JSONL."
        ) from error


def _parquet_rows(path: Path, needed: Collection[str]) -> Rows:
    file = open_parquet(path)
    selected = [name for name in needed if name in file.schema_arrow.names]
    place = "the first row"
    try:
        batches = file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=selected)
        for place, row in _numbered((row for batch in batches for row in batch.to_pylist()), str(path)):
            yield place, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"`{path}` cannot be read at or after {place} ({error}). Fetch or write it again.") from error


def open_parquet(path: Path) -> pq.ParquetFile:
    """Opens a Parquet file, or says that it is none."""
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"`{path}` is not a complete Parquet file ({error}). Fetch or write it again.") from error


__all__ = ["Table", "expect_dataset", "find_file", "is_text", "open_parquet", "open_tables", "read_lines"]
