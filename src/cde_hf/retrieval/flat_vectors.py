"""
Rows of vectors in one array, with exact search.

The search is that of FAISS' flat index. The array is NumPy's, which asks the system for large pages; FAISS does not.
Building and searching are faster with them.
"""

from pathlib import Path

import faiss
import numpy as np

from .vector_rows import VectorRows


_GROWTH = 1.5


class FlatVectors(VectorRows):
    """
    Vectors in one array.

    Args:
        vectors (`np.ndarray` of shape `(num_rows, dim)`):
            The vectors, in float32. They belong to the object from now on.
    """

    file_name = "vectors.npy"

    def __init__(self, vectors: np.ndarray):
        super().__init__(len(vectors))
        self._array = vectors  # (num_rows or more, dim): with room to grow

    @classmethod
    def read(cls, path: Path) -> "FlatVectors":
        """Reads what [`FlatVectors.write`] wrote."""
        return cls(np.load(path))

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._array.shape[1]

    def write(self, path: Path) -> None:
        """Writes the rows as one NumPy array."""
        np.save(path, self._array[: len(self.is_live)])

    def _copy_all(self) -> np.ndarray:
        return self._array[: len(self.is_live)].copy()

    def _append(self, vectors: np.ndarray) -> None:
        first_row = len(self.is_live)
        num_rows = first_row + len(vectors)
        if num_rows > len(self._array):
            array = np.empty((max(num_rows, int(_GROWTH * first_row)), self.dim), dtype=np.float32)
            array[:first_row] = self._array[:first_row]
            self._array = array
        self._array[first_row:num_rows] = vectors

    def _clear(self) -> None:
        self._array = np.empty((0, self.dim), dtype=np.float32)

    def _search(
        self, query_vectors: np.ndarray, depth: int, selector: faiss.IDSelector | None
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = np.empty((len(query_vectors), depth), dtype=np.float32)
        rows = np.empty((len(query_vectors), depth), dtype=np.int64)
        faiss.knn_inner_product(
            faiss.swig_ptr(query_vectors),
            faiss.swig_ptr(self._array),
            self.dim,
            len(query_vectors),
            len(self.is_live),
            depth,
            faiss.swig_ptr(scores),
            faiss.swig_ptr(rows),
            selector,
        )
        return scores, rows


__all__ = ["FlatVectors"]
