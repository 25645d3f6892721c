"""
The rows of an index: ids, texts and vectors of documents, which are added, removed and searched together.

A removed row keeps its number and is skipped in searches until [`DocumentRows.compact`]. No model is needed here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Literal, get_args

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


IndexKind = Literal["auto", "flat", "hnsw", "ivf"]

MAX_FLAT_ROWS = 500_000

_DOCUMENTS_FILE = "documents.parquet"
_FLAT_FILE = "vectors.npy"
_FAISS_FILE = "vectors.faiss"
_FLAT_GROWTH = 1.5
_HNSW_NEIGHBOURS = 32
_HNSW_BUILD_DEPTH = 80
_HNSW_SEARCH_DEPTH = 128
_IVF_TRAINING_ROWS_PER_LIST = 64


@dataclass(frozen=True)
class SearchHit:
    """
    A document that a search found.

    Args:
        document_id (`str`):
            Its id.
        score (`float`):
            Inner product of its vector and the query's, which is the cosine for unit-norm vectors.
        text (`str`, *optional*):
            Its text, if the index has it.
    """

    document_id: str
    score: float
    text: str | None = None


class DocumentRows:
    """
    Documents whose ids, texts and vectors are in the same rows. Made by [`DocumentRows.build`] or
    [`DocumentRows.read`].
    """

    def __init__(self, index: "faiss.Index | _FlatIndex", document_ids: list[str], texts: Sequence[str | None]):
        self._index = index
        self._document_ids = document_ids
        self._texts = list(texts)
        self._is_live = np.ones(len(document_ids), dtype=bool)  # (num_rows,)
        self._num_removed = 0
        self._known_rows: dict[str, int] | None = None

    @classmethod
    def build(
        cls, vectors: np.ndarray, document_ids: list[str], texts: Sequence[str | None], *, kind: IndexKind = "auto"
    ) -> "DocumentRows":
        """
        Puts documents into rows that can be searched.

        Args:
            vectors (`np.ndarray` of shape `(num_documents, dim)`):
                Their vectors in float32, which are copied.
            document_ids (`list[str]`):
                Their ids, without duplicates.
            texts (`Sequence[str | None]`):
                Their texts, `None` where unknown.
            kind (`str`, *optional*, defaults to `"auto"`):
                `"flat"` searches exactly. `"hnsw"` searches a graph of neighbours: fast, but slow to build. `"ivf"`
                searches some of many clusters. `"auto"` is flat up to 500,000 rows and `"hnsw"` beyond.
        """
        return cls(_build_index(vectors, kind), document_ids, texts)

    @classmethod
    def read(cls, paths: Mapping[str, Path]) -> "DocumentRows":
        """Reads the files of [`DocumentRows.writers`], whose paths are given by file name."""
        table = pq.read_table(paths[_DOCUMENTS_FILE])
        is_flat = _FLAT_FILE in paths
        index = _FlatIndex(np.load(paths[_FLAT_FILE])) if is_flat else faiss.read_index(str(paths[_FAISS_FILE]))
        return cls(index, table["id"].to_pylist(), table["text"].to_pylist())

    def __len__(self) -> int:
        return len(self._is_live) - self._num_removed

    def __contains__(self, document_id: str) -> bool:
        return document_id in self._row_numbers

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._index.d

    @property
    def document_ids(self) -> list[str]:
        """Ids of the documents, in the order of their vectors."""
        return list(compress(self._document_ids, self._is_live))

    @property
    def texts(self) -> list[str | None]:
        """Texts of the documents, in the same order."""
        return list(compress(self._texts, self._is_live))

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the vectors, of shape `(num_documents, dim)`."""
        vectors = self._index.reconstruct_n(0, self._index.ntotal)
        return vectors[self._is_live] if self._num_removed else vectors

    def search(self, query_vectors: np.ndarray, depth: int) -> list[list[SearchHit]]:
        """Returns the documents of each query, best first; fewer than `depth` if there are no more."""
        depth = max(1, min(depth, len(self)))
        if self._num_removed:
            # FAISS reads the bits in place, so the array must outlive the search.
            bits = np.packbits(self._is_live, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            scores, rows = self._index.search(query_vectors, depth, params=_search_parameters(self._index, selector))
        else:
            scores, rows = self._index.search(query_vectors, depth)
        return [
            [
                SearchHit(self._document_ids[row], score, self._texts[row])
                for row, score in zip(row_list, score_list, strict=True)
                if row >= 0
            ]
            for row_list, score_list in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def add(self, document_ids: list[str], vectors: np.ndarray, texts: Sequence[str | None]) -> None:
        """Adds documents, whose ids must be new."""
        self._row_numbers.update({name: number for number, name in enumerate(document_ids, len(self._document_ids))})
        self._index.add(vectors)
        self._document_ids.extend(document_ids)
        self._texts.extend(texts)
        self._is_live = np.concatenate([self._is_live, np.ones(len(vectors), dtype=bool)])

    def remove(self, document_ids: Sequence[str]) -> None:
        """Removes documents, which must be in the index."""
        rows = [self._row_numbers.pop(document_id) for document_id in dict.fromkeys(document_ids)]
        self._is_live[rows] = False
        self._num_removed += len(rows)

    def compact(self) -> None:
        """Frees the space of removed documents. The remaining rows are renumbered."""
        if self._num_removed:
            vectors, document_ids, texts = self.vectors, self.document_ids, self.texts
            self._index.reset()
            self._index.add(vectors)
            self._document_ids, self._texts, self._known_rows = document_ids, texts, None
            self._is_live, self._num_removed = np.ones(len(document_ids), dtype=bool), 0

    def refuse_known(self, document_ids: Sequence[str]) -> None:
        """Refuses ids that are in the index."""
        known = [document_id for document_id in document_ids if document_id in self]
        if known:
            raise ValueError(
                f"{len(known)} of {len(document_ids)} documents have ids that are in the index, such as {known[:3]}. "
                "Nothing was added: delete these first, or give new ids."
            )

    def refuse_missing(self, document_ids: Sequence[str]) -> None:
        """Refuses ids that are not in the index."""
        missing = [document_id for document_id in document_ids if document_id not in self]
        if missing:
            raise KeyError(
                f"{len(missing)} of {len(document_ids)} documents are not in the index, such as {missing[:3]}. "
                "Nothing was deleted: leave them out."
            )

    def writers(self) -> dict[str, Callable[[Path], None]]:
        """A function that writes each file, by file name. Call [`DocumentRows.compact`] first."""
        name = _FLAT_FILE if isinstance(self._index, _FlatIndex) else _FAISS_FILE
        return {name: self._write_vectors, _DOCUMENTS_FILE: self._write_documents}

    def _write_vectors(self, path: Path) -> None:
        if isinstance(self._index, _FlatIndex):
            self._index.write(path)
        else:
            faiss.write_index(self._index, str(path))

    def _write_documents(self, path: Path) -> None:
        columns = {"id": pa.array(self._document_ids, pa.string()), "text": pa.array(self._texts, pa.string())}
        pq.write_table(pa.table(columns), path)

    @property
    def _row_numbers(self) -> dict[str, int]:
        if self._known_rows is None:  # only adding and removing need them
            self._known_rows = {name: row for row, name in enumerate(self._document_ids)}
        return self._known_rows


def checked_texts(texts: Sequence[str] | None, num_documents: int) -> Sequence[str | None]:
    """Returns texts as a list, one for each document; all `None` if no texts are given."""
    if texts is None:
        return [None] * num_documents
    texts = list(texts)
    if len(texts) != num_documents:
        raise ValueError(f"There are {len(texts)} texts for {num_documents} ids. Give one text for each id.")
    other = next((text for text in texts if not isinstance(text, str)), "")
    if not isinstance(other, str):
        raise TypeError(f"Documents must be texts, got a `{type(other).__name__}`. Give their contents.")
    return texts


class _FlatIndex:
    """
    Exact search by FAISS over a NumPy array, with the methods of `faiss.IndexFlatIP` that are needed here.

    NumPy requests huge pages and FAISS does not. They make building and searching faster.
    """

    def __init__(self, vectors: np.ndarray):
        self.ntotal, self.d = vectors.shape
        self._array = vectors  # (ntotal or more, d): with room to grow

    def add(self, vectors: np.ndarray) -> None:
        num_rows = self.ntotal + len(vectors)
        if num_rows > len(self._array):
            array = np.empty((max(num_rows, int(_FLAT_GROWTH * self.ntotal)), self.d), dtype=np.float32)
            array[: self.ntotal] = self._array[: self.ntotal]
            self._array = array
        self._array[self.ntotal : num_rows] = vectors
        self.ntotal = num_rows

    def reset(self) -> None:
        self.ntotal, self._array = 0, np.empty((0, self.d), dtype=np.float32)

    def reconstruct_n(self, start: int, num_rows: int) -> np.ndarray:
        return self._array[start : start + num_rows].copy()

    def search(
        self, query_vectors: np.ndarray, depth: int, *, params: faiss.SearchParameters | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = np.empty((len(query_vectors), depth), dtype=np.float32)
        rows = np.empty((len(query_vectors), depth), dtype=np.int64)
        faiss.knn_inner_product(
            faiss.swig_ptr(query_vectors),
            faiss.swig_ptr(self._array),
            self.d,
            len(query_vectors),
            self.ntotal,
            depth,
            faiss.swig_ptr(scores),
            faiss.swig_ptr(rows),
            params.sel if params is not None else None,
        )
        return scores, rows

    def write(self, path: Path) -> None:
        np.save(path, self._array[: self.ntotal])


def _build_index(vectors: np.ndarray, kind: IndexKind) -> "faiss.Index | _FlatIndex":
    if kind not in get_args(IndexKind):
        raise ValueError(f"`kind` must be one of {', '.join(get_args(IndexKind))}, got `{kind}`.")
    num_rows, dim = vectors.shape
    if kind == "auto":
        kind = "flat" if num_rows <= MAX_FLAT_ROWS else "hnsw"
    if kind == "flat":
        return _FlatIndex(vectors.copy())
    if kind == "hnsw":
        index = faiss.index_factory(dim, f"HNSW{_HNSW_NEIGHBOURS}", faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = _HNSW_BUILD_DEPTH, _HNSW_SEARCH_DEPTH
    else:
        num_lists = max(1, min(round(4 * num_rows**0.5), num_rows // _IVF_TRAINING_ROWS_PER_LIST))
        index = faiss.index_factory(dim, f"IVF{num_lists},Flat", faiss.METRIC_INNER_PRODUCT)
        index.nprobe = max(1, min(num_lists, 8 + num_lists // 16))
        num_training_rows = min(num_rows, num_lists * _IVF_TRAINING_ROWS_PER_LIST)
        sample = np.random.default_rng(0).choice(num_rows, num_training_rows, replace=False)
        index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    index.add(vectors)
    return index


def _search_parameters(index: "faiss.Index | _FlatIndex", selector: faiss.IDSelector) -> faiss.SearchParameters:
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(sel=selector, efSearch=_HNSW_SEARCH_DEPTH)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
    return faiss.SearchParameters(sel=selector)


__all__ = ["MAX_FLAT_ROWS", "DocumentRows", "IndexKind", "SearchHit", "checked_texts"]
