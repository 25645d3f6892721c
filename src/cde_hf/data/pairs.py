"""
Training pairs of query and document from files, folders and the Hub, cleaned, kept on disk and memory-mapped.

1. The rows of all tables stream through the checks of `cleaning.py` into one Arrow file. Only 8 bytes of each pair
   stay in memory.
2. If these bytes show duplicates, the file is copied without them.
"""

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers.utils import logging

from .cleaning import BadRowCounter, BadRowError, CleaningReport, make_pair, pair_digest
from .files import cache_key, cached_dataset, write_rows
from .sources import MappedTable, PairSource, map_columns, open_tables


logger = logging.get_logger(__name__)

# Raise it with every change of what makes a row bad, so that older pairs in the cache are not reused.
_CLEANING_VERSION = 1
_SCHEMA = pa.schema(
    {"query": pa.string(), "document": pa.string(), "negatives": pa.list_(pa.string()), "domain": pa.string()}
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
            Split of a dataset on the Hub.
        bad_rows (`str`, *optional*, defaults to `"drop"`):
            What to do with rows that are empty, malformed or duplicate. `"drop"` drops them and logs how many there
            are of each kind; `"refuse"` raises an error.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
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
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
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
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
            Where the cleaned pairs are kept.

    Returns:
        `tuple[Dataset, CleaningReport]`: The pairs and the report.
    """
    tables = [map_columns(source, table) for source in sources for table in open_tables(source)]
    contents = [[mapped.table.identity, mapped.columns, mapped.default_domain] for mapped in tables]
    key = cache_key("pairs", _CLEANING_VERSION, contents)
    dataset, facts = cached_dataset(cache_folder, f"pairs-{key}", lambda path: _write_pairs(tables, path))
    report = CleaningReport(**facts)
    if report.num_pairs == 0:
        places = ", ".join(f"`{mapped.table.place}`" for mapped in tables[:10])
        raise ValueError(f"There is no pair in {places or 'no source'}. {report} Check the data and `columns`.")
    negatives = dataset.data.column("negatives")
    if not any(len(chunk.flatten()) for chunk in negatives.chunks):
        dataset = dataset.remove_columns("negatives")
    return dataset, report


def _write_pairs(tables: Sequence[MappedTable], path: Path) -> dict[str, Any]:
    """
    Writes the good and distinct pairs of tables to an Arrow stream.

    Args:
        tables (`Sequence[MappedTable]`):
            What to read, in this order.
        path (`Path`):
            File to write.

    Returns:
        `dict[str, Any]`: Fields of a [`CleaningReport`].
    """
    counter = BadRowCounter()
    digests = array("Q")
    write_rows(_stream_pairs(tables, counter, digests), path, _SCHEMA)
    _drop_duplicates(path, np.asarray(digests), counter)
    return asdict(counter.report())


def _stream_pairs(tables: Sequence[MappedTable], counter: BadRowCounter, digests: array) -> Iterator[dict[str, Any]]:
    with logging.tqdm(desc="Reading pairs", unit=" rows") as progress:
        for mapped in tables:
            table = mapped.table
            for number, row in table.read([column for columns in mapped.columns.values() for column in columns]):
                counter.num_rows += 1
                progress.update()
                try:
                    pair = make_pair(row, mapped.columns, default_domain=mapped.default_domain)
                except BadRowError as error:
                    counter.add(error.kind, f"{table.row_word} {number} of `{table.place}`")
                else:
                    digests.append(pair_digest(pair))
                    yield pair


def _drop_duplicates(path: Path, digests: np.ndarray, counter: BadRowCounter) -> None:
    is_first = np.zeros(len(digests), dtype=bool)
    is_first[np.unique(digests, return_index=True)[1]] = True
    if is_first.all():
        return
    unique_path = path.with_suffix(".unique")
    start = 0
    with (
        pa.OSFile(str(path)) as source,
        pa.ipc.open_stream(source) as reader,
        pa.OSFile(str(unique_path), "wb") as sink,
        pa.ipc.new_stream(sink, _SCHEMA) as writer,
    ):
        for batch in reader:
            is_kept = is_first[start : start + batch.num_rows]
            start += batch.num_rows
            if not is_kept.all():
                query = batch["query"][int(np.argmin(is_kept))].as_py()
                counter.add("duplicate", f"the query {query[:80]!r}", count=int((~is_kept).sum()))
            writer.write_batch(batch.filter(pa.array(is_kept)))
    os.replace(unique_path, path)


__all__ = ["clean_sources", "load_pairs", "load_sources"]
