"""
Training pairs of query and document from files, folders and the Hub, cleaned, kept on disk and memory-mapped.

1. The rows of all tables stream through the checks of `cleaning.py` into the cache of `datasets`, each with what is
   wrong with it and with 8 bytes that tell it from others.
2. The rows without a fault are selected, and of duplicates the first. Nothing is copied.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from datasets.exceptions import DatasetGenerationError
from transformers.utils import logging

from .cleaning import PAIR_COLUMNS, BadRowError, CleaningReport, make_pair, pair_digest
from .sources import Table, open_tables


logger = logging.get_logger(__name__)

# Raise it with every change of what makes a row bad, so that older pairs in the cache are not reused.
_CLEANING_VERSION = 2
_TEXT = Value("string")
_FEATURES = Features(
    {**dict.fromkeys(PAIR_COLUMNS, _TEXT), "negatives": List(_TEXT)}
    | {"digest": Value("int64"), "fault": _TEXT, "place": _TEXT}
)
_NO_PAIR: dict[str, Any] = {"query": None, "document": None, "negatives": [], "domain": None, "digest": 0}


@dataclass(frozen=True)
class PairSource:
    """
    A source of pairs and how to read it.

    Args:
        source (`str`, `os.PathLike` or `datasets.Dataset`):
            A JSONL, JSON, CSV, TSV or Parquet file, gzipped or not, a folder of such files or of `save_to_disk`, the
            name of a dataset on the Hub, or a dataset.
        columns (`Mapping`, *optional*):
            Maps `query`, `document`, `negatives` and `domain` to the names of the source's columns, where these
            differ. `negatives` may be one column, of lists or of texts, or several columns of texts. A row without
            negatives gets an empty list.
        domain (`str`, *optional*):
            Domain of all pairs. Defaults to the column `domain`. Without this column the domain is the name of the
            file, without ending and shard number, or of the dataset on disk or on the Hub.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a dataset on disk or on the Hub.
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


def load_pairs(
    source: str | os.PathLike | Dataset,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    domain: str | None = None,
    split: str = "train",
    bad_rows: Literal["drop", "refuse"] = "drop",
    cache_folder: str | os.PathLike | None = None,
) -> Dataset:
    """
    Loads the pairs of one source, ready for training.

    Args:
        source (`str`, `os.PathLike` or `datasets.Dataset`):
            What to read; see [`PairSource`], also for `columns`, `domain` and `split`.
        columns (`Mapping`, *optional*):
            The source's names of our columns.
        domain (`str`, *optional*):
            Domain of all pairs.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a dataset on disk or on the Hub.
        bad_rows (`str`, *optional*, defaults to `"drop"`):
            What to do with rows that are empty, malformed or duplicate. `"drop"` drops them and logs how many there
            are of each kind; `"refuse"` raises an error.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to the cache of `datasets`):
            Where the cleaned pairs are kept.

    Returns:
        `datasets.Dataset`: Memory-mapped pairs with the columns `query`, `document` and `domain`, plus `negatives` if
        any row has some.
    """
    return load_sources(
        [PairSource(source, columns=columns, domain=domain, split=split)], bad_rows=bad_rows, cache_folder=cache_folder
    )


def load_sources(
    sources: Sequence[PairSource],
    *,
    bad_rows: Literal["drop", "refuse"] = "drop",
    cache_folder: str | os.PathLike | None = None,
) -> Dataset:
    """
    Loads the pairs of several sources into one dataset, in their order. See [`load_pairs`].

    Args:
        sources (`Sequence[PairSource]`):
            What to read.
        bad_rows (`str`, *optional*, defaults to `"drop"`):
            `"drop"` or `"refuse"`.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to the cache of `datasets`):
            Where the cleaned pairs are kept.

    Returns:
        `datasets.Dataset`: The pairs.
    """
    if bad_rows not in ("drop", "refuse"):
        raise ValueError(f"`bad_rows` must be 'drop' or 'refuse', got {bad_rows!r}.")
    dataset, report = clean_sources(sources, cache_folder=cache_folder)
    if not report.num_bad_rows:
        logger.info(f"Read {report.num_pairs:,} pairs. {report}")
    elif bad_rows == "drop":
        logger.warning(f"{report} They are dropped; `bad_rows='refuse'` makes them an error.")
    else:
        raise ValueError(f"{report} Fix the data, or drop them with `bad_rows='drop'`.")
    return dataset


def clean_sources(
    sources: Sequence[PairSource], *, cache_folder: str | os.PathLike | None = None
) -> tuple[Dataset, CleaningReport]:
    """
    Loads the good pairs of several sources, and counts the bad rows.

    Args:
        sources (`Sequence[PairSource]`):
            What to read.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to the cache of `datasets`):
            Where the cleaned pairs are kept.

    Returns:
        `tuple[Dataset, CleaningReport]`: The pairs and the report.
    """
    tables = [_map_columns(source, table) for source in sources for table in open_tables(source.source, source.split)]
    rows = _checked_rows(tables, cache_folder)
    good = np.flatnonzero(pc.is_null(rows.data.column("fault")).to_numpy())
    kept = good[np.sort(np.unique(rows.data.column("digest").to_numpy()[good], return_index=True)[1])]
    bad, places = (pc.drop_null(rows.data.column(name)).to_pylist() for name in ("fault", "place"))
    counts, first_bad_rows = Counter(bad), dict(zip(reversed(bad), reversed(places), strict=True))
    if len(kept) < len(good):
        counts["duplicate"] = len(good) - len(kept)
        repeated = np.setdiff1d(good, kept, assume_unique=True)[0]
        first_bad_rows["duplicate"] = f"the query {rows[int(repeated)]['query'][:80]!r}"
    report = CleaningReport(len(rows), counts, first_bad_rows)
    if report.num_pairs == 0:
        names = ", ".join(f"`{mapped.table.place}`" for mapped in tables[:10])
        raise ValueError(f"There is no pair in {names or 'no source'}. {report} Check the data and `columns`.")
    pairs = rows.select_columns(list(PAIR_COLUMNS))
    pairs = pairs if len(kept) == len(rows) else pairs.select(kept)
    if not any(len(chunk.flatten()) for chunk in rows.data.column("negatives").chunks):
        pairs = pairs.remove_columns("negatives")
    return pairs, report


def cached_rows(
    rows: Callable[[], Iterator[dict[str, Any]]],
    features: Features,
    identity: Sequence[Any],
    cache_folder: str | os.PathLike | None,
) -> Dataset:
    """Writes rows to the cache of `datasets`, unless rows of this identity, which is JSON, are there already."""
    folder = Path(cache_folder or datasets.config.HF_DATASETS_CACHE).expanduser()
    key = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=12).hexdigest()
    load = partial(Dataset.from_generator, rows, features=features, cache_dir=str(folder), fingerprint=key)
    try:
        try:
            return load()
        except (pa.ArrowInvalid, OSError):  # the file in the cache is corrupt or incomplete
            shutil.rmtree(folder / "generator" / f"default-fingerprint={key}", ignore_errors=True)
            return load()
    except ValueError:
        if next(rows(), None) is not None:
            raise
        return Dataset.from_dict({name: [] for name in features}, features=features)
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None  # ours names the file and the line


def parse_columns(columns: Sequence[str]) -> dict[str, str]:
    """Parses column names of a command line, such as `["query=question", "document=answer"]`."""
    parsed = {}
    for column in columns:
        name, is_pair, source_name = column.partition("=")
        if not (is_pair and source_name):
            raise ValueError(f"`--columns` takes pairs such as query=question, got `{column}`.")
        parsed[name] = source_name
    return parsed


@dataclass(frozen=True)
class _MappedTable:
    """A table, its columns for each of ours, and the domain of rows without one."""

    table: Table
    columns: dict[str, list[str]]
    default_domain: str | None


def _map_columns(source: PairSource, table: Table) -> _MappedTable:
    given = {
        name: [columns] if isinstance(columns, str) else list(columns)
        for name, columns in (source.columns or {}).items()
    }
    columns = {name: [name] for name in PAIR_COLUMNS} | given
    needed = dict.fromkeys(column for name in ("query", "document", *given) for column in columns[name])
    missing = [column for column in needed if column not in table.columns]
    if missing and table.columns:  # an empty file has no columns
        raise ValueError(
            f"`{table.place}` has no column {missing}; it has {list(table.columns)}. Name the source's columns: "
            "`columns={'query': 'question', 'document': 'answer'}`, or `--columns query=question document=answer`."
        )
    if source.domain is not None:
        del columns["domain"]
        return _MappedTable(table, columns, source.domain)
    if table.name is None and columns["domain"][0] not in table.columns:
        raise ValueError(
            "A dataset in memory has no name that could be its domain. Name the domain, as in `domain='faq'`, or its "
            "column, as in `columns={'domain': 'topic'}`."
        )
    # If a column was named for the domain, a row without a domain is a mistake and gets no default.
    return _MappedTable(table, columns, None if "domain" in given else table.name)


def _checked_rows(tables: Sequence[_MappedTable], cache_folder: str | os.PathLike | None) -> Dataset:
    """Reads all rows into the cache, or finds them there."""
    contents = [[mapped.table.identity, mapped.columns, mapped.default_domain] for mapped in tables]
    return cached_rows(lambda: _check_rows(tables), _FEATURES, ["pairs", _CLEANING_VERSION, contents], cache_folder)


def _check_rows(tables: Sequence[_MappedTable]) -> Iterator[dict[str, Any]]:
    for mapped in tables:
        for place, row in mapped.table.read([column for columns in mapped.columns.values() for column in columns]):
            try:
                pair = make_pair(row, mapped.columns, default_domain=mapped.default_domain)
            except BadRowError as error:
                yield {**_NO_PAIR, "fault": error.kind, "place": place}
            else:
                yield {**pair, "digest": pair_digest(pair), "fault": None, "place": None}


__all__ = ["PairSource", "cached_rows", "clean_sources", "load_pairs", "load_sources", "parse_columns"]
