"""Where pairs come from: a file, a folder of files, a dataset in memory or on the Hub; and checks of these."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import (
    Dataset,
    DatasetDict,
    IterableDataset,
    IterableDatasetDict,
    LargeList,
    List,
    Value,
    load_dataset,
)
from datasets.exceptions import DatasetNotFoundError

from .files import FILE_ENDINGS, file_ending, find_data_files, read_columns, read_rows


PAIR_COLUMNS = ("query", "document", "negatives", "domain")

_ROWS_PER_BATCH = 1000
_TEXT_TYPES = ("string", "large_string", "string_view")
_SHARD_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class PairSource:
    """
    A source of pairs and how to read it.

    Args:
        source (`str`, `os.PathLike` or `datasets.Dataset`):
            A JSONL, JSONL.gz, Parquet or CSV file, a folder of such files, the name of a dataset on the Hub, or a
            dataset.
        columns (`Mapping`, *optional*):
            Maps `query`, `document`, `negatives` and `domain` to the names of the source's columns, where these
            differ. `negatives` may be one column, of lists or of texts, or several columns of texts. A row without
            negatives gets an empty list.
        domain (`str`, *optional*):
            Domain of all pairs. Defaults to the column `domain`. Without this column the domain is the name of the
            file, without ending and shard number, or of the dataset on the Hub.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a dataset on the Hub.
    """

    source: str | os.PathLike | Dataset
    columns: Mapping[str, str | Sequence[str]] | None = None
    domain: str | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        columns = self.columns or {}
        unknown = [name for name in columns if name not in PAIR_COLUMNS]
        if unknown:
            raise ValueError(
                f"`columns` has the keys {unknown}, but must map our names {list(PAIR_COLUMNS)} to the "
                "source's names. Did you swap keys and values?"
            )
        listed = [name for name in columns if name != "negatives" and not isinstance(columns[name], str)]
        if listed:
            raise TypeError(f"`columns` must name one column for {listed}. Only `negatives` may have several.")
        if self.domain is not None and "domain" in columns:
            raise ValueError(
                f"Both `domain={self.domain!r}` and the column `{columns['domain']}` were given for the domain. Give "
                "only one of them."
            )


@dataclass(frozen=True)
class Table:
    """
    One file or dataset of a source, read row by row.

    Args:
        name (`str`, *optional*):
            Default domain of its pairs. `None` for a dataset in memory, which has no name.
        place (`str`):
            Its name in messages.
        row_word (`str`):
            Name of its rows in messages, `"line"` or `"row"`.
        columns (`Sequence[str]`):
            Names of its columns.
        identity (`Sequence[str | int]`):
            Changes when the rows change.
        read (`Callable`):
            Takes the columns that are needed and returns an iterator over row numbers, from 1, and rows.
    """

    name: str | None
    place: str
    row_word: str
    columns: Sequence[str]
    identity: Sequence[str | int]
    read: Callable[[Sequence[str]], Iterator[tuple[int, dict[str, Any]]]]


@dataclass(frozen=True)
class MappedTable:
    """
    A table and the columns to read from it.

    Args:
        table (`Table`):
            The table.
        columns (`dict[str, list[str]]`):
            The table's columns for each of ours. Without `domain` if it is not read.
        default_domain (`str`, *optional*):
            Domain of rows without one.
    """

    table: Table
    columns: dict[str, list[str]]
    default_domain: str | None


def check_pairs(dataset: Dataset) -> None:
    """
    Checks that a dataset holds pairs, and raises an error otherwise.

    The columns `query` and `document` must hold texts, and so must an optional column `domain`. An optional column
    `negatives` must hold lists of texts. Other columns are ignored. Only types are checked; [`load_pairs`] reads rows.

    Args:
        dataset (`datasets.Dataset`):
            The dataset to check.

    Example:

    ```python
    >>> from datasets import Dataset
    >>> check_pairs(Dataset.from_dict({"query": ["Who barks?"], "document": ["A dog barks."]}))

    ```
    """
    expect_dataset(dataset, "dataset")
    missing = [name for name in ("query", "document") if name not in dataset.column_names]
    if missing:
        raise ValueError(
            f"The dataset has no column {missing}; it has {dataset.column_names}. Rename its columns, or read it with "
            "`load_pairs(dataset, columns=...)`."
        )
    for name in ("query", "document", "domain"):
        if name in dataset.column_names and not is_text(dataset.features[name]):
            raise ValueError(
                f"The column `{name}` must hold texts, got {dataset.features[name]}. Cast it, or read the "
                "dataset with `load_pairs`, which drops rows that are not texts."
            )
    if "negatives" in dataset.column_names and not _is_list_of_texts(dataset.features["negatives"]):
        raise ValueError(
            f"The column `negatives` must hold lists of texts, got {dataset.features['negatives']}. Read the dataset "
            "with `load_pairs`, which takes single texts too."
        )
    if len(dataset) == 0:
        raise ValueError("The dataset has no rows, at least one pair was expected. Check how it was filtered.")


def open_tables(source: PairSource) -> list[Table]:
    """Opens the tables of a source: one for each file, or one for the dataset."""
    if not isinstance(source.source, str | os.PathLike):
        expect_dataset(source.source, "source")
        _expect_no_split(source)
        return [_dataset_table(source.source, None)]
    path = Path(source.source).expanduser()
    if path.exists():
        _expect_no_split(source)
        return [_file_table(file) for file in find_data_files(path)]
    if isinstance(source.source, os.PathLike) or _looks_like_path(source.source):
        raise FileNotFoundError(f"There is no file or folder `{path}`. Check the path.")
    try:
        dataset = load_dataset(source.source, split=source.split)
    except (DatasetNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(
            f"`{source.source}` is not a local file or folder, and was not found on the Hub ({error}). Check the "
            "name and the connection to the Hub."
        ) from error
    return [_dataset_table(dataset, source.source)]


def map_columns(source: PairSource, table: Table) -> MappedTable:
    """Maps our columns to the columns of a table. Raises an error if the table lacks one."""
    given = {
        name: [columns] if isinstance(columns, str) else list(columns)
        for name, columns in (source.columns or {}).items()
    }
    columns = {name: [name] for name in PAIR_COLUMNS} | given
    needed = dict.fromkeys(column for name in ("query", "document", *given) for column in columns[name])
    missing = [column for column in needed if column not in table.columns]
    if missing:
        raise ValueError(
            f"`{table.place}` has no column {missing}; it has {list(table.columns)}. Map our columns to the "
            "source's, as in `columns={'query': 'question', 'document': 'answer'}`."
        )
    if source.domain is not None:
        del columns["domain"]
        return MappedTable(table, columns, source.domain)
    if table.name is None and columns["domain"][0] not in table.columns:
        raise ValueError(
            "A dataset in memory has no name that could be its domain. Name the domain, as in `domain='faq'`, or its "
            "column, as in `columns={'domain': 'topic'}`."
        )
    # If a column was named for the domain, a row without a domain is a mistake and gets no default.
    return MappedTable(table, columns, None if "domain" in given else table.name)


def _file_table(path: Path) -> Table:
    status = path.stat()
    return Table(
        name=_SHARD_NUMBER.sub("", path.name.removesuffix(file_ending(path))),
        place=str(path),
        row_word="row" if path.suffix == ".parquet" else "line",
        columns=read_columns(path),
        identity=[str(path.resolve()), status.st_size, status.st_mtime_ns],
        read=lambda columns: read_rows(path, columns),
    )


def _dataset_table(dataset: Dataset, name: str | None) -> Table:
    return Table(
        name=name,
        place=name or "the dataset",
        row_word="row",
        columns=dataset.column_names,
        identity=[dataset._fingerprint],
        read=lambda columns: _read_dataset(dataset, columns),
    )


def _read_dataset(dataset: Dataset, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    selected = dataset.with_format(None).select_columns([name for name in columns if name in dataset.column_names])
    batches = selected.iter(batch_size=_ROWS_PER_BATCH)
    rows = (dict(zip(batch, values, strict=True)) for batch in batches for values in zip(*batch.values(), strict=True))
    return enumerate(rows, start=1)


def expect_dataset(value: Any, argument: str) -> None:
    """Raises a `TypeError` that guesses the intent, unless the value is a `datasets.Dataset`."""
    if isinstance(value, Dataset):
        return
    received = f"`{argument}` must be a `datasets.Dataset`, got a `{type(value).__name__}`"
    if isinstance(value, DatasetDict | IterableDatasetDict):
        split = "train" if "train" in value else next(iter(value), "train")
        raise TypeError(f"{received} with the splits {list(value)}. Did you mean `dataset['{split}']`?")
    if isinstance(value, IterableDataset):
        raise TypeError(f"{received}. Load it without `streaming=True`.")
    raise TypeError(f"{received}. Use `load_pairs` for files, `Dataset.from_dict` for lists.")


def is_text(feature: Any) -> bool:
    """Whether a column with this feature holds texts."""
    return isinstance(feature, Value) and feature.dtype in _TEXT_TYPES


def _is_list_of_texts(feature: Any) -> bool:
    return isinstance(feature, List | LargeList) and is_text(feature.feature)


def _expect_no_split(source: PairSource) -> None:
    if source.split != "train":
        raise ValueError(
            f"`split={source.split!r}` was given, but only datasets on the Hub have splits. Leave `split` out."
        )


def _looks_like_path(source: str) -> bool:
    return source.startswith((".", "~", "/")) or source.count("/") > 1 or source.endswith(FILE_ENDINGS)


__all__ = [
    "MappedTable",
    "PairSource",
    "Table",
    "check_pairs",
    "expect_dataset",
    "is_text",
    "map_columns",
    "open_tables",
]
