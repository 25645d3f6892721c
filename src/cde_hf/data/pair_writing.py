"""
From the rows of many tables to one Arrow file of clean pairs.

1. The rows stream through the checks of `cleaning.py` into the file. Of each pair only 8 bytes stay in memory.
2. If these bytes show duplicates, the file is copied without them.
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers.utils import logging

from .arrow_cache import write_rows
from .cleaning import BadRowCounter, BadRowError, make_pair, pair_digest
from .sources import PAIR_COLUMNS, PairSource, Table


_SCHEMA = pa.schema(
    {"query": pa.string(), "document": pa.string(), "negatives": pa.list_(pa.string()), "domain": pa.string()}
)


@dataclass(frozen=True)
class MappedTable:
    """
    A table with its names of our columns.

    Args:
        table (`Table`):
            The table.
        columns (`dict[str, list[str]]`):
            The table's columns for each of ours; none for `domain` if it is not to be read.
        default_domain (`str`, *optional*):
            Domain of a row that has none of its own.
    """

    table: Table
    columns: dict[str, list[str]]
    default_domain: str | None


def map_columns(source: PairSource, table: Table) -> MappedTable:
    """Finds the columns of a table of this source, with an error if it lacks some."""
    given = {
        name: [columns] if isinstance(columns, str) else list(columns)
        for name, columns in (source.columns or {}).items()
    }
    columns = {name: [name] for name in PAIR_COLUMNS} | given
    needed = dict.fromkeys(column for name in ("query", "document", *given) for column in columns[name])
    missing = [column for column in needed if column not in table.columns]
    if missing:
        raise ValueError(
            f"`{table.place}` has no column {missing}; it has {list(table.columns)}. Say what the source calls our "
            "columns, as in `columns={'query': 'question', 'document': 'answer'}`."
        )
    if source.domain is not None:
        del columns["domain"]
        return MappedTable(table, columns, source.domain)
    if table.name is None and columns["domain"][0] not in table.columns:
        raise ValueError(
            "A dataset in memory has no name that could be its domain. Name the domain, as in `domain='faq'`, or its "
            "column, as in `columns={'domain': 'topic'}`."
        )
    # Where a column was named for the domain, a row without one is a mistake and no matter for a default.
    return MappedTable(table, columns, None if "domain" in given else table.name)


def write_pairs(tables: Sequence[MappedTable], path: Path) -> dict[str, Any]:
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


__all__ = ["MappedTable", "map_columns", "write_pairs"]
