"""Rows of vectors in FAISS: exact or approximate search by the inner product, in which rows can be taken out."""

from typing import Literal, get_args

import faiss
import numpy as np
from transformers.utils import logging


logger = logging.get_logger(__name__)

IndexKind = Literal["auto", "flat", "hnsw", "ivf"]

MAX_FLAT_ROWS = 500_000

_HNSW_NEIGHBOURS = 32
_HNSW_BUILD_DEPTH = 80
_HNSW_SEARCH_DEPTH = 128
_TRAINING_ROWS_PER_LIST = 64


class FaissVectors:
    """
    Vectors in one FAISS index, numbered in the order in which they were added.

    A row that is taken out keeps its number and is passed over in searches, until [`FaissVectors.compact`].

    Args:
        faiss_index (`faiss.Index`):
            The index, which compares by the inner product.
    """

    def __init__(self, faiss_index: faiss.Index):
        self.faiss_index = faiss_index
        self.is_live = np.ones(faiss_index.ntotal, dtype=bool)  # (num_rows,)
        self._num_removed = 0

    @classmethod
    def build(cls, vectors: np.ndarray, *, kind: IndexKind = "auto") -> "FaissVectors":
        """
        Puts vectors into a new index.

        Args:
            vectors (`np.ndarray` of shape `(num_rows, dim)`):
                The vectors, in float32.
            kind (`str`, *optional*, defaults to `"auto"`):
                `"flat"`: exact. `"hnsw"`: a graph of neighbours, fast and slow to build. `"ivf"`: clusters, of which
                a search looks into some. `"auto"`: flat up to 500,000 rows, a graph beyond.
        """
        if kind not in get_args(IndexKind):
            raise ValueError(f"`kind` must be one of {', '.join(get_args(IndexKind))}, got `{kind}`.")
        if kind == "auto":
            kind = "flat" if len(vectors) <= MAX_FLAT_ROWS else "hnsw"
        rows = cls(_new_index(vectors, kind))
        rows.add(vectors)
        return rows

    def __len__(self) -> int:
        """Number of rows, without those that were taken out."""
        return len(self.is_live) - self._num_removed

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.faiss_index.d

    @property
    def vectors(self) -> np.ndarray:
        """The rows that are there, of shape `(num_rows, dim)`, in their order."""
        vectors = self.faiss_index.reconstruct_n(0, self.faiss_index.ntotal)
        return vectors if self._num_removed == 0 else vectors[self.is_live]

    def add(self, vectors: np.ndarray) -> None:
        """Adds rows at the end."""
        self.faiss_index.add(vectors)
        self.is_live = np.concatenate([self.is_live, np.ones(len(vectors), dtype=bool)])

    def remove(self, rows: np.ndarray) -> None:
        """Takes rows out of all searches to come."""
        self.is_live[rows] = False
        self._num_removed = len(self.is_live) - int(self.is_live.sum())

    def compact(self) -> None:
        """Gives up the room of the rows that were taken out. Those that are left are numbered anew."""
        if self._num_removed == 0:
            return
        vectors = self.vectors
        self.faiss_index.reset()
        self.is_live, self._num_removed = np.zeros(0, dtype=bool), 0
        self.add(vectors)

    def search(self, query_vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """
        Finds the rows with the largest inner products.

        Returns:
            `tuple` of arrays of shape `(num_queries, depth)`: Scores and row numbers, best first; -1 where no more
            rows were found.
        """
        if self._num_removed == 0:
            return self.faiss_index.search(query_vectors, depth)
        # Bits, eight to a byte, the first row in the lowest one. FAISS reads the array, which must outlive the search.
        bits = np.packbits(self.is_live, bitorder="little")
        selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
        return self.faiss_index.search(query_vectors, depth, params=self._parameters(selector))

    def _parameters(self, selector: faiss.IDSelector) -> faiss.SearchParameters:
        if isinstance(self.faiss_index, faiss.IndexHNSW):
            return faiss.SearchParametersHNSW(sel=selector, efSearch=_HNSW_SEARCH_DEPTH)
        if isinstance(self.faiss_index, faiss.IndexIVF):
            return faiss.SearchParametersIVF(sel=selector, nprobe=self.faiss_index.nprobe)
        return faiss.SearchParameters(sel=selector)


def _new_index(vectors: np.ndarray, kind: str) -> faiss.Index:
    num_rows, dim = vectors.shape
    if kind == "flat":
        return faiss.IndexFlatIP(dim)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, _HNSW_NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _HNSW_BUILD_DEPTH
        index.hnsw.efSearch = _HNSW_SEARCH_DEPTH
        return index
    num_lists = max(1, min(round(4 * num_rows**0.5), num_rows // _TRAINING_ROWS_PER_LIST))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, num_lists, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = max(1, min(num_lists, 8 + num_lists // 16))
    num_training_rows = min(num_rows, num_lists * _TRAINING_ROWS_PER_LIST)
    chosen = np.random.default_rng(0).choice(num_rows, num_training_rows, replace=False)
    index.train(np.ascontiguousarray(vectors[np.sort(chosen)]))
    logger.info(f"The index has {num_lists} clusters, of which a search looks into {index.nprobe}.")
    return index


__all__ = ["MAX_FLAT_ROWS", "FaissVectors", "IndexKind"]
