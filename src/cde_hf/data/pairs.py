"""Training pairs of query and document from files, folders and the Hub, cleaned, kept on disk and memory-mapped."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from datasets import Dataset
from transformers.utils import logging

from .arrow_cache import cache_key, cached_dataset
from .cleaning import CleaningReport
from .pair_writing import map_columns, write_pairs
from .sources import PairSource, open_tables


logger = logging.get_logger(__name__)

# Goes up with every change of what makes a row bad, so that no older pairs are taken for new ones.
_CLEANING_VERSION = 1


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
    Pairs of one source, ready for training.

    Args:
        source (`str`, `os.PathLike` or `datasets.Dataset`):
            What to read; see [`PairSource`], also for `columns`, `domain` and `split`.
        columns (`Mapping`, *optional*):
            The source's names of our columns.
        domain (`str`, *optional*):
            Domain of all pairs.
        split (`str`, *optional*, defaults to `"train"`):
            Split to take of a dataset on the Hub.
        bad_rows (`str`, *optional*, defaults to `"drop"`):
            What to do with rows that are empty, malformed or duplicate: `"drop"` leaves them out and logs how many of
            each kind, `"refuse"` raises an error that says so.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
            Where the cleaned pairs are kept.

    Returns:
        `datasets.Dataset`: Memory-mapped pairs with the columns `query`, `document`, `domain` and, if any row has
        some, `negatives`.
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
    Pairs of several sources in one dataset, in their order. Arguments and result are those of [`load_pairs`].

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
        logger.warning(f"{report} They are left out; `bad_rows='refuse'` makes them an error.")
    else:
        raise ValueError(f"{report} Mend the data, or leave them out with `bad_rows='drop'`.")
    return dataset


def clean_sources(
    sources: Sequence[PairSource], *, cache_folder: str | os.PathLike | None = None
) -> tuple[Dataset, CleaningReport]:
    """
    The good pairs of several sources, and how many rows were bad.

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
    dataset, facts = cached_dataset(cache_folder, f"pairs-{key}", lambda path: write_pairs(tables, path))
    report = CleaningReport(**facts)
    if report.num_pairs == 0:
        places = ", ".join(f"`{mapped.table.place}`" for mapped in tables[:10])
        raise ValueError(f"There is no pair in {places or 'no source'}. {report} Check the data and `columns`.")
    negatives = dataset.data.column("negatives")
    if not any(len(chunk.flatten()) for chunk in negatives.chunks):
        dataset = dataset.remove_columns("negatives")
    return dataset, report


__all__ = ["clean_sources", "load_pairs", "load_sources"]
