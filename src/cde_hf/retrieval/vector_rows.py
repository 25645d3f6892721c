"""Rows of vectors that are searched by the inner product, and from which rows can be taken out."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import faiss
import numpy as np


class VectorRows(ABC):
    """
    Vectors, numbered in the order in which they were added.

    A row that is taken out keeps its number and is passed over in searches, until [`VectorRows.compact`].

    Args:
        num_rows (`int`):
            Number of rows that are there from the start.
    """

    file_name: ClassVar[str]

    def __init__(self, num_rows: int):
        self.is_live = np.ones(num_rows, dtype=bool)  # (num_rows,)
        self._num_removed = 0

    def __len__(self) -> int:
        """Number of rows, without those that were taken out."""
        return len(self.is_live) - self._num_removed

    @property
    @abstractmethod
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the rows that are there, of shape `(num_rows, dim)`, in their order."""
        vectors = self._copy_all()
        return vectors if self._num_removed == 0 else vectors[self.is_live]

    def add(self, vectors: np.ndarray) -> None:
        """Adds rows at the end, in float32."""
        self._append(vectors)
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
        self._clear()
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
            return self._search(query_vectors, depth, None)
        # Bits, eight to a byte, the first row in the lowest one. FAISS reads the array, which must outlive the search.
        bits = np.packbits(self.is_live, bitorder="little")
        return self._search(query_vectors, depth, faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits)))

    @abstractmethod
    def write(self, path: Path) -> None:
        """Writes the rows to a file."""

    @abstractmethod
    def _copy_all(self) -> np.ndarray:
        """All rows, also those that were taken out."""

    @abstractmethod
    def _append(self, vectors: np.ndarray) -> None: ...

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _search(
        self, query_vectors: np.ndarray, depth: int, selector: faiss.IDSelector | None
    ) -> tuple[np.ndarray, np.ndarray]: ...


__all__ = ["VectorRows"]
