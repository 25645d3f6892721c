"""Rows of vectors in FAISS, with approximate search: a graph of neighbours, or clusters."""

from pathlib import Path

import faiss
import numpy as np
from transformers.utils import logging

from .vector_rows import VectorRows


logger = logging.get_logger(__name__)

_HNSW_NEIGHBOURS = 32
_HNSW_BUILD_DEPTH = 80
_HNSW_SEARCH_DEPTH = 128
_TRAINING_ROWS_PER_LIST = 64


class FaissVectors(VectorRows):
    """
    Vectors in one FAISS index.

    Args:
        faiss_index (`faiss.Index`):
            The index, which compares by the inner product.
    """

    file_name = "vectors.faiss"

    def __init__(self, faiss_index: faiss.Index):
        super().__init__(faiss_index.ntotal)
        self.faiss_index = faiss_index

    @classmethod
    def build_graph(cls, vectors: np.ndarray) -> "FaissVectors":
        """Puts vectors of shape `(num_rows, dim)` into a graph of neighbours: fast to search, slow to build."""
        index = faiss.IndexHNSWFlat(vectors.shape[1], _HNSW_NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _HNSW_BUILD_DEPTH
        index.hnsw.efSearch = _HNSW_SEARCH_DEPTH
        index.add(vectors)
        return cls(index)

    @classmethod
    def build_clusters(cls, vectors: np.ndarray) -> "FaissVectors":
        """Puts vectors of shape `(num_rows, dim)` into clusters, of which a search looks into some."""
        num_rows, dim = vectors.shape
        num_lists = max(1, min(round(4 * num_rows**0.5), num_rows // _TRAINING_ROWS_PER_LIST))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, num_lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = max(1, min(num_lists, 8 + num_lists // 16))
        num_training_rows = min(num_rows, num_lists * _TRAINING_ROWS_PER_LIST)
        chosen = np.random.default_rng(0).choice(num_rows, num_training_rows, replace=False)
        index.train(np.ascontiguousarray(vectors[np.sort(chosen)]))
        logger.info(f"The index has {num_lists} clusters, of which a search looks into {index.nprobe}.")
        index.add(vectors)
        return cls(index)

    @classmethod
    def read(cls, path: Path) -> "FaissVectors":
        """Reads what [`FaissVectors.write`] wrote."""
        return cls(faiss.read_index(str(path)))

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.faiss_index.d

    def write(self, path: Path) -> None:
        """Writes the FAISS index."""
        faiss.write_index(self.faiss_index, str(path))

    def _copy_all(self) -> np.ndarray:
        return self.faiss_index.reconstruct_n(0, self.faiss_index.ntotal)

    def _append(self, vectors: np.ndarray) -> None:
        self.faiss_index.add(vectors)

    def _clear(self) -> None:
        self.faiss_index.reset()

    def _search(
        self, query_vectors: np.ndarray, depth: int, selector: faiss.IDSelector | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if selector is None:
            return self.faiss_index.search(query_vectors, depth)
        if isinstance(self.faiss_index, faiss.IndexHNSW):
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=_HNSW_SEARCH_DEPTH)
        else:
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=self.faiss_index.nprobe)
        return self.faiss_index.search(query_vectors, depth, params=parameters)


__all__ = ["FaissVectors"]
