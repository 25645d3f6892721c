"""The kinds of search that an index can have: exact, or approximate and faster."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from .faiss_vectors import FaissVectors
from .flat_vectors import FlatVectors
from .vector_rows import VectorRows


IndexKind = Literal["auto", "flat", "hnsw", "ivf"]

MAX_FLAT_ROWS = 500_000


def build_rows(vectors: np.ndarray, *, kind: IndexKind = "auto") -> VectorRows:
    """
    Puts a copy of vectors into rows that can be searched.

    Args:
        vectors (`np.ndarray` of shape `(num_rows, dim)`):
            The vectors, in float32.
        kind (`str`, *optional*, defaults to `"auto"`):
            `"flat"`: exact. `"hnsw"`: a graph of neighbours, fast and slow to build. `"ivf"`: clusters, of which a
            search looks into some. `"auto"`: flat up to 500,000 rows, a graph beyond.
    """
    if kind not in get_args(IndexKind):
        raise ValueError(f"`kind` must be one of {', '.join(get_args(IndexKind))}, got `{kind}`.")
    if kind == "auto":
        kind = "flat" if len(vectors) <= MAX_FLAT_ROWS else "hnsw"
    if kind == "flat":
        return FlatVectors(vectors.copy())
    return FaissVectors.build_graph(vectors) if kind == "hnsw" else FaissVectors.build_clusters(vectors)


def read_rows(paths: Mapping[str, Path]) -> VectorRows:
    """Reads rows from the one of several files, by their names, that holds them."""
    kind = FlatVectors if FlatVectors.file_name in paths else FaissVectors
    return kind.read(paths[kind.file_name])


__all__ = ["MAX_FLAT_ROWS", "IndexKind", "build_rows", "read_rows"]
