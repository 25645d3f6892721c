"""The docstring corpus: (summary, body) pairs from the libraries that are installed here, each library a domain."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers.utils import logging

from .arrow_cache import cache_key, cached_dataset, write_rows
from .docstring_parsing import drop_repeats, find_source_files, read_docstrings, split_docstring
from .libraries import HELD_OUT_LIBRARIES, InstalledLibrary, find_libraries
from .retrieval_sets import RetrievalSet, retrieval_set_from_pairs


logger = logging.get_logger(__name__)

# Goes up with every change of the rules in `docstring_parsing.py`, so that no older corpus is taken for a new one.
_CORPUS_VERSION = 1
_SCHEMA = pa.schema({"query": pa.string(), "document": pa.string(), "domain": pa.string()})


def docstring_pairs(
    *, libraries: Sequence[str] | None = None, cache_folder: str | os.PathLike | None = None
) -> Dataset:
    """
    The docstring corpus: of each docstring the opening sentence as the query and what follows it as the document.

    The source files are parsed, not imported. That takes a minute or two for all libraries; the result is kept on disk
    until a library changes its version.

    Args:
        libraries (`Sequence[str]`, *optional*, defaults to all that are installed):
            Names from `LIBRARIES`.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
            Where the corpus is kept.

    Returns:
        `datasets.Dataset`: Memory-mapped pairs with the columns `query`, `document` and `domain`, which is the
        library, in the order of library, file and line.
    """
    found = find_libraries(libraries)
    versions = {name: library.version for name, library in found.items()}
    key = cache_key("docstrings", _CORPUS_VERSION, versions)
    dataset, facts = cached_dataset(cache_folder, f"docstrings-{key}", lambda path: _write_corpus(found, path))
    logger.info(f"Docstrings of {', '.join(f'{name} {number}' for name, number in facts['versions'].items())}.")
    return dataset


def docstring_split(
    *, libraries: Sequence[str] | None = None, cache_folder: str | os.PathLike | None = None
) -> tuple[Dataset, list[RetrievalSet]]:
    """
    The docstring corpus with whole libraries, `HELD_OUT_LIBRARIES`, kept from training to test with.

    Args:
        libraries (`Sequence[str]`, *optional*, defaults to all that are installed):
            Names from `LIBRARIES`.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
            Where the corpus is kept.

    Returns:
        `tuple[Dataset, list[RetrievalSet]]`: The pairs to train on, and a retrieval set for each held-out library.
    """
    dataset = docstring_pairs(libraries=libraries, cache_folder=cache_folder)
    domains = np.array(dataset["domain"][:])
    is_held_out = np.isin(domains, HELD_OUT_LIBRARIES)
    if is_held_out.all():
        raise ValueError(
            f"All of the libraries {np.unique(domains).tolist()} are held out, so no pair is left to train on. Add "
            "others."
        )
    retrieval_sets = [
        retrieval_set_from_pairs(library, dataset.select(np.flatnonzero(domains == library)))
        for library in HELD_OUT_LIBRARIES
        if library in domains
    ]
    return dataset.select(np.flatnonzero(~is_held_out)), retrieval_sets


def _write_corpus(libraries: Mapping[str, InstalledLibrary], path: Path) -> dict[str, Any]:
    write_rows(_stream_pairs(libraries), path, _SCHEMA)
    return {"versions": {name: library.version for name, library in libraries.items()}}


def _stream_pairs(libraries: Mapping[str, InstalledLibrary]) -> Iterator[dict[str, str]]:
    files = {name: find_source_files(library.folder) for name, library in libraries.items()}
    seen: set[str] = set()
    with logging.tqdm(desc="Reading docstrings", unit=" files", total=sum(map(len, files.values()))) as progress:
        for name, paths in files.items():
            pairs = []
            for path in paths:
                pairs.extend(pair for docstring in read_docstrings(path) if (pair := split_docstring(docstring)))
                progress.update()
            for query, document in drop_repeats(pairs):
                # What one library took over from another must not stand on both sides of a split.
                if document not in seen:
                    seen.add(document)
                    yield {"query": query, "document": document, "domain": name}


__all__ = ["docstring_pairs", "docstring_split"]
