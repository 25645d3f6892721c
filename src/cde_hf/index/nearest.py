"""
Vectors that can be searched: exactly in an array, or approximately by FAISS. Values: a change makes a new one.

Both kinds have rows that are numbered from 0. They may be memory-mapped files, which are read where they are searched.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

import faiss
import numpy as np

from .rows import RemovedRows


IndexKind = Literal["auto", "flat", "hnsw", "ivf"]

MAX_FLAT_ROWS = 500_000

# Rows at once, a multiple of 8: a block and its scores fit into the cache of a processor.
_ROWS_PER_BLOCK = 8192
_QUERIES_PER_BLOCK = 512
_GROWTH = 1.5
_HNSW_NEIGHBOURS = 32
_HNSW_BUILD_DEPTH = 80
_HNSW_SEARCH_DEPTH = 128
_HYBRID_CANDIDATES = 100
_IVF_TRAINING_ROWS_PER_LIST = 64


class FlatVectors:
    """
    Vectors in an array, which are searched exactly.

    Args:
        array (`np.ndarray` of shape `(capacity, dim)`):
            The vectors in float32. Rows behind `num_rows` are room for more. All values that follow one another share
            it, so only the newest may be followed by another one.
        num_rows (`int`, *optional*):
            Number of vectors. Defaults to all rows of the array.
    """

    file_name = "vectors.npy"

    def __init__(self, array: np.ndarray, num_rows: int | None = None):
        self._room = array
        self._array = array[:num_rows]  # (num_rows, dim)

    @classmethod
    def read(cls, path: Path) -> "FlatVectors":
        """Opens a file of vectors."""
        return cls(np.asarray(np.load(path, mmap_mode="r")))

    def __len__(self) -> int:
        return len(self._array)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._array.shape[1]

    def blocks(self) -> Iterator[np.ndarray]:
        """The vectors, some thousands at once."""
        yield from (self._array[start : start + _ROWS_PER_BLOCK] for start in range(0, len(self), _ROWS_PER_BLOCK))

    def followed_by(self, vectors: np.ndarray) -> "FlatVectors":
        """Returns these vectors and more."""
        num_rows = len(self) + len(vectors)
        room = self._room
        if num_rows > len(room):
            room = np.empty((int(_GROWTH * num_rows), self.dim), dtype=np.float32)
            room[: len(self)] = self._array
        room[len(self) : num_rows] = vectors
        return FlatVectors(room, num_rows)

    def search(
        self, queries: np.ndarray, depth: int, removed: RemovedRows, bonuses: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Finds the rows with the largest inner products.

        Args:
            queries (`np.ndarray` of shape `(num_queries, dim)`):
                Vectors of the queries.
            depth (`int`):
                Number of rows to find.
            removed (`RemovedRows`):
                Rows to leave out.
            bonuses (`np.ndarray` of shape `(num_queries, num_rows)`, *optional*):
                What to add to the inner products.

        Returns:
            `tuple` of `np.ndarray` of shape `(num_queries, depth)`: Scores in descending order, and rows. -1 where
            there are no more rows.
        """
        parts = [
            self._search(queries[part], depth, removed, None if bonuses is None else bonuses[part])
            for start in range(0, len(queries), _QUERIES_PER_BLOCK)
            for part in [slice(start, start + _QUERIES_PER_BLOCK)]
        ]
        return np.concatenate([scores for scores, _ in parts]), np.concatenate([rows for _, rows in parts])

    def _search(
        self, queries: np.ndarray, depth: int, removed: RemovedRows, bonuses: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        best_scores = np.full((len(queries), depth), -np.inf, dtype=np.float32)
        best_rows = np.full((len(queries), depth), -1)
        start = 0
        for block in self.blocks():
            scores = queries @ block.T  # (num_queries, num_rows)
            if bonuses is not None:
                scores += bonuses[:, start : start + len(block)]
            if removed.count:
                scores[:, ~removed.is_live(start, len(block))] = -np.inf
            rows = np.argpartition(scores, max(0, len(block) - depth), axis=1)[:, -depth:]
            scores = np.concatenate([best_scores, np.take_along_axis(scores, rows, axis=1)], axis=1)
            rows = np.concatenate([best_rows, rows + start], axis=1)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
            best_scores, best_rows = (np.take_along_axis(values, order, axis=1) for values in (scores, rows))
            start += len(block)
        best_rows[best_scores == -np.inf] = -1
        return best_scores, best_rows


class ApproximateVectors:
    """
    Vectors in an index of FAISS: HNSW, a graph of neighbours, or IVF, clusters of which only some are searched.

    Args:
        index (`faiss.Index`):
            The index, which is not changed.
    """

    file_name = "vectors.faiss"

    def __init__(self, index: faiss.Index):
        self.index = index

    @classmethod
    def read(cls, path: Path) -> "ApproximateVectors":
        """Opens a file of FAISS."""
        return cls(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC))

    @classmethod
    def build(cls, vectors: np.ndarray, kind: Literal["hnsw", "ivf"]) -> "ApproximateVectors":
        """Builds an index of vectors of shape `(num_rows, dim)`."""
        num_rows, dim = vectors.shape
        if kind == "hnsw":
            index = _empty_graph(dim)
        else:
            num_lists = max(1, min(round(4 * num_rows**0.5), num_rows // _IVF_TRAINING_ROWS_PER_LIST))
            index = faiss.index_factory(dim, f"IVF{num_lists},Flat", faiss.METRIC_INNER_PRODUCT)
            index.nprobe = max(1, min(num_lists, 8 + num_lists // 16))
            num_training_rows = min(num_rows, num_lists * _IVF_TRAINING_ROWS_PER_LIST)
            sample = np.random.default_rng(0).choice(num_rows, num_training_rows, replace=False)
            index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
        index.add(vectors)
        return cls(index)

    def __len__(self) -> int:
        return self.index.ntotal

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.index.d

    @property
    def _is_graph(self) -> bool:
        return isinstance(self.index, faiss.IndexHNSW)

    def blocks(self) -> Iterator[np.ndarray]:
        """The vectors, some thousands at once."""
        for start in range(0, len(self), _ROWS_PER_BLOCK):
            yield self.index.reconstruct_n(start, min(_ROWS_PER_BLOCK, len(self) - start))

    def followed_by(self, blocks: Iterable[np.ndarray]) -> "ApproximateVectors":
        """Returns an index of these vectors and more."""
        # In memory, because FAISS ends the process if it adds to a memory-mapped index.
        return ApproximateVectors(faiss.deserialize_index(faiss.serialize_index(self.index)))._filled(blocks)

    def replaced_by(self, blocks: Iterable[np.ndarray]) -> "ApproximateVectors":
        """Returns an index of other vectors. IVF keeps its clusters."""
        if self._is_graph:
            return ApproximateVectors(_empty_graph(self.dim))._filled(blocks)
        quantizer = faiss.clone_index(self.index.quantizer)
        index = faiss.IndexIVFFlat(quantizer, self.dim, self.index.nlist, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = self.index.nprobe
        return ApproximateVectors(index)._filled(blocks)

    def _filled(self, blocks: Iterable[np.ndarray]) -> "ApproximateVectors":
        for block in blocks:
            self.index.add(np.ascontiguousarray(block))
        return self

    def search(
        self, queries: np.ndarray, depth: int, removed: RemovedRows, bonuses: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Finds rows with large scores, as [`FlatVectors.search`] does, but not always the largest ones.

        The more rows are removed, the more are visited. A query that still finds too few is searched exactly. With
        bonuses, the rows of the largest inner products and those of the largest bonuses are scored exactly.
        """
        if bonuses is not None:
            return self._search_candidates(queries, depth, removed, bonuses)
        # FAISS reads the bits in place, so they must outlive the search.
        selector = faiss.IDSelectorBitmap(len(removed.bits), faiss.swig_ptr(removed.bits))
        remaining = faiss.IDSelectorNot(selector)
        effort = len(self) / (len(self) - removed.count)
        if self._is_graph:
            search_depth = round(effort * _HNSW_SEARCH_DEPTH)
            parameters = faiss.SearchParametersHNSW(sel=remaining, efSearch=search_depth)
        else:
            num_lists = min(self.index.nlist, round(effort * self.index.nprobe))
            parameters = faiss.SearchParametersIVF(sel=remaining, nprobe=num_lists)
        scores, rows = self.index.search(queries, depth, params=parameters)
        is_short = (rows[:, : len(self) - removed.count] < 0).any(axis=1)
        if is_short.any():
            scores[is_short], rows[is_short] = self._search_exactly(queries[is_short], depth, remaining)
        return scores, rows

    def _search_exactly(
        self, queries: np.ndarray, depth: int, selector: faiss.IDSelector
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._is_graph:
            storage = faiss.downcast_index(self.index.storage)
            return storage.search(queries, depth, params=faiss.SearchParameters(sel=selector))
        return self.index.search(
            queries, depth, params=faiss.SearchParametersIVF(sel=selector, nprobe=self.index.nlist)
        )

    def _search_candidates(
        self, queries: np.ndarray, depth: int, removed: RemovedRows, bonuses: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        num_candidates = min(max(depth, _HYBRID_CANDIDATES), len(self) - removed.count)
        is_live = removed.is_live(0, len(self))
        _, near_rows = self.search(queries, num_candidates, removed)
        best_scores = np.empty((len(queries), depth), dtype=np.float32)
        best_rows = np.empty((len(queries), depth), dtype=int)
        for place, (query, near, bonus) in enumerate(zip(queries, near_rows, bonuses, strict=True)):
            is_candidate = np.zeros(len(self), dtype=bool)
            is_candidate[near] = True
            is_candidate[np.argpartition(np.where(is_live, bonus, -np.inf), -num_candidates)[-num_candidates:]] = True
            bits = np.packbits(is_candidate, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            scores, rows = self._search_exactly(query[np.newaxis], int(is_candidate.sum()), selector)
            totals = scores[0] + bonus[rows[0]]
            order = np.argsort(-totals, kind="stable")[:depth]
            best_scores[place], best_rows[place] = totals[order], rows[0][order]
        return best_scores, best_rows


def build_vectors(vectors: np.ndarray, kind: IndexKind) -> FlatVectors | ApproximateVectors:
    """
    Makes vectors searchable.

    Args:
        vectors (`np.ndarray` of shape `(num_rows, dim)`):
            The vectors in float32. Flat vectors are not copied.
        kind (`str`):
            `"flat"` searches exactly. `"hnsw"` searches a graph of neighbours: fast, but slow to build. `"ivf"`
            searches some of many clusters. `"auto"` is flat up to 500,000 rows and `"hnsw"` beyond.
    """
    check_kind(kind)
    if kind == "auto":
        kind = "flat" if len(vectors) <= MAX_FLAT_ROWS else "hnsw"
    return FlatVectors(vectors) if kind == "flat" else ApproximateVectors.build(vectors, kind)


def check_kind(kind: str) -> None:
    """Refuses an unknown kind of search."""
    if kind not in get_args(IndexKind):
        raise ValueError(f"`kind` must be one of {', '.join(get_args(IndexKind))}, got `{kind}`.")


def _empty_graph(dim: int) -> faiss.IndexHNSW:
    index = faiss.index_factory(dim, f"HNSW{_HNSW_NEIGHBOURS}", faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = _HNSW_BUILD_DEPTH, _HNSW_SEARCH_DEPTH
    return index


__all__ = ["MAX_FLAT_ROWS", "ApproximateVectors", "FlatVectors", "IndexKind", "build_vectors", "check_kind"]
