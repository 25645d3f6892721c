"""
The state of an index: an immutable value that a search reads while writers make the next one.

1. The *base* has the documents that the index was built with or opened with.
2. Documents that are added follow in a second segment, which is searched exactly.
3. Documents that are removed keep their rows, and are left out of every search.
4. When much was added or removed, everything moves to a new base.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import pyarrow as pa
from scipy import sparse

from ..evaluation.bm25 import Postings
from ..evaluation.hybrid import lexical_weight
from ..modeling import sample_documents
from ..modeling.corpus_part import NUM_CALIBRATION_DOCUMENTS
from .nearest import ApproximateVectors, FlatVectors, IndexKind, build_vectors
from .rows import DOCUMENTS_SCHEMA, AddedDocuments, RemovedRows, StoredDocuments
from .terms import TermIndex


# An approximate index takes in the added documents when they are so many, or this share of the base. Before, they are
# searched exactly, which takes about as long as searching the base.
_MAX_ADDED_ROWS = 10_000
_MAX_ADDED_SHARE = 0.02
_MAX_REMOVED_SHARE = 0.5
_ROWS_PER_TABLE = 1 << 16  # a multiple of 8
_SCORES_AT_ONCE = 1 << 24  # of hybrid search


@dataclass(frozen=True)
class SearchHit:
    """
    A document that a search found.

    Args:
        document_id (`str`):
            Its id.
        score (`float`):
            Inner product of its vector and the query's, which is the cosine for unit-norm vectors. In hybrid search,
            BM25 adds to it.
        text (`str`, *optional*):
            Its text, if the index has it.
    """

    document_id: str
    score: float
    text: str | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """
    Documents and their vectors, in the same rows.

    Args:
        vectors (`FlatVectors` or `ApproximateVectors`):
            The vectors.
        documents (`StoredDocuments` or `AddedDocuments`):
            The documents.
        removed (`RemovedRows`, *optional*):
            Rows that are removed.
    """

    vectors: FlatVectors | ApproximateVectors
    documents: StoredDocuments | AddedDocuments
    removed: RemovedRows = field(default_factory=RemovedRows)

    def __len__(self) -> int:
        """Number of documents that are not removed."""
        return len(self.documents) - self.removed.count

    def find(self, document_id: str) -> int | None:
        """Row of a document. `None` if it is not here or was removed."""
        row = self.documents.row_of(document_id)
        return None if row is None or row in self.removed else row

    def without(self, document_ids: Sequence[str]) -> Self:
        """The segment without some documents, as far as they are here."""
        rows = [row for document_id in document_ids if (row := self.find(document_id)) is not None]
        return replace(self, removed=self.removed.followed_by(rows)) if rows else self

    def search(
        self, queries: np.ndarray, depth: int, bonuses: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows of the best documents, as [`FlatVectors.search`] returns them."""
        return self.vectors.search(queries, min(depth, len(self)), self.removed, bonuses)

    def is_live(self) -> np.ndarray:
        """Whether each document remains, of shape `(num_rows,)`."""
        return self.removed.is_live(0, len(self.documents))

    def blocks(self) -> Iterator[np.ndarray]:
        """Vectors of the documents that are not removed, some thousands at once."""
        start = 0
        for block in self.vectors.blocks():
            yield block[self.removed.is_live(start, len(block))] if self.removed.count else block
            start += len(block)

    def tables(self) -> Iterator[pa.Table]:
        """The documents that are not removed, with the columns `id` and `text`, some thousands at once."""
        table = self.documents.table
        for start in range(0, len(table), _ROWS_PER_TABLE):
            part = table.slice(start, _ROWS_PER_TABLE)
            yield part.filter(pa.array(self.removed.is_live(start, len(part)))) if self.removed.count else part


class AddedSegment(Segment):
    """A segment to which documents are added. Only the newest may be followed by another one."""

    vectors: FlatVectors
    documents: AddedDocuments

    def followed_by(
        self, document_ids: Sequence[str], vectors: np.ndarray, texts: Sequence[str | None]
    ) -> "AddedSegment":
        """The segment with more documents."""
        documents = self.documents.followed_by(document_ids, texts)
        return AddedSegment(self.vectors.followed_by(vectors), documents, self.removed)


@dataclass(frozen=True, eq=False)
class IndexState:
    """
    Documents that can be searched, in two segments. Only the newest state may be followed by another one.

    Args:
        base (`Segment`):
            Documents that no state changes.
        added (`AddedSegment`):
            Documents that were added since the base was made.
        terms (`TermIndex`, *optional*):
            The terms of all documents. `None` if no text is known.
    """

    base: Segment
    added: AddedSegment
    terms: TermIndex | None = None

    @classmethod
    def build(
        cls,
        vectors: np.ndarray,
        document_ids: Sequence[str],
        texts: Sequence[str | None],
        kind: IndexKind,
        *,
        counts: sparse.csr_matrix | None = None,
    ) -> "IndexState":
        """Makes the state of a new index: arguments of [`build_vectors`], and the output of [`count_texts`]."""
        state = cls.of(build_vectors(vectors, kind), StoredDocuments.of(document_ids, texts))
        return state if counts is None else state._with_postings(Postings.of(counts))

    @classmethod
    def of(
        cls,
        vectors: FlatVectors | ApproximateVectors,
        documents: StoredDocuments,
        terms: TermIndex | None = None,
    ) -> "IndexState":
        """Makes the state of an index to which nothing was added."""
        added = AddedSegment(FlatVectors(np.empty((0, vectors.dim), dtype=np.float32)), AddedDocuments())
        return cls(Segment(vectors, documents), added, terms)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.base) + len(self.added)

    def __contains__(self, document_id: str) -> bool:
        return self.base.find(document_id) is not None or self.added.find(document_id) is not None

    def row_of(self, document_id: str) -> int:
        """Row of a document, which must be in the index."""
        row, first_row = self.base.find(document_id), 0
        if row is None:
            row, first_row = self.added.find(document_id), len(self.base.documents)
        if row is None:
            raise KeyError(f"The document `{document_id}` is not in the index. Search again: it may be deleted.")
        return row + first_row

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.base.vectors.dim

    def tables(self) -> Iterator[pa.Table]:
        """Ids and texts of the documents, some thousands at once."""
        return chain(self.base.tables(), self.added.tables())

    def column(self, name: str) -> list[Any]:
        """The column `id` or `text` of the documents."""
        return [value for table in self.tables() for value in table[name].to_pylist()]

    def blocks(self) -> Iterator[np.ndarray]:
        """Vectors of the documents in the same order, some thousands at once."""
        return chain(self.base.blocks(), self.added.blocks())

    def vectors(self) -> np.ndarray:
        """A copy of the vectors, of shape `(num_documents, dim)`."""
        vectors = np.empty((len(self), self.dim), dtype=np.float32)
        start = 0
        for block in self.blocks():
            vectors[start : start + len(block)] = block
            start += len(block)
        return vectors

    def search(
        self, queries: np.ndarray, depth: int, query_terms: Sequence[np.ndarray] | None = None
    ) -> list[list[SearchHit]]:
        """
        Finds the best documents of each query.

        Args:
            queries (`np.ndarray` of shape `(num_queries, dim)`):
                Vectors of the queries.
            depth (`int`):
                Number of documents to find.
            query_terms (sequence of `np.ndarray`, *optional*):
                The distinct terms of each query, for hybrid search.

        Returns:
            `list[list[SearchHit]]`: The documents of each query, best first; fewer than `depth` if there are no more.
        """
        if query_terms is None or self.terms is None:
            return self._search(queries, depth, None)
        at_once = max(1, _SCORES_AT_ONCE // max(1, len(self.terms)))
        return [
            hits
            for start in range(0, len(queries), at_once)
            for part in [slice(start, start + at_once)]
            for bonuses in [np.stack([self.terms.scores(term_ids) for term_ids in query_terms[part]])]
            for hits in self._search(queries[part], depth, bonuses)
        ]

    def _search(self, queries: np.ndarray, depth: int, bonuses: np.ndarray | None) -> list[list[SearchHit]]:
        first_rows = (0, len(self.base.documents))
        found = []
        for first_row, segment in zip(first_rows, (self.base, self.added), strict=True):
            if len(segment):
                own = None if bonuses is None else bonuses[:, first_row : first_row + len(segment.documents)]
                scores, rows = segment.search(queries, depth, own)
                found.append((scores, np.where(rows < 0, -1, rows + first_row)))
        if not found:
            return [[] for _ in queries]
        scores, rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        order = np.argsort(np.where(rows < 0, np.inf, -scores), axis=1, kind="stable")[:, :depth]
        scores, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
        return [
            [self._hit(row, score) for row, score in zip(row_list, score_list, strict=True) if row >= 0]
            for row_list, score_list in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def _hit(self, row: int, score: float) -> SearchHit:
        num_base_rows = len(self.base.documents)
        is_added = row >= num_base_rows
        document_id, text = self.added.documents[row - num_base_rows] if is_added else self.base.documents[row]
        return SearchHit(document_id, score, text)

    def refuse_known(self, document_ids: Sequence[str]) -> None:
        """Refuses ids that are in the index."""
        known = [document_id for document_id in document_ids if document_id in self]
        if known:
            raise ValueError(
                f"{len(known)} of {len(document_ids)} documents have ids that are in the index, such as {known[:3]}. "
                "Nothing was added: delete these first, or give new ids."
            )

    def with_documents(
        self,
        document_ids: Sequence[str],
        vectors: np.ndarray,
        texts: Sequence[str | None],
        counts: sparse.csr_matrix | None = None,
    ) -> "IndexState":
        """Returns the state with more documents, whose ids must be new, and the counts of [`count_texts`]."""
        self.refuse_known(document_ids)
        terms, are_first_texts = self.terms, self.terms is None and counts is not None
        if counts is not None and terms is None:
            terms = TermIndex(Postings.of(sparse.csr_matrix((len(self._is_live()), counts.shape[1]))), weight=0.0)
        if terms is not None:
            no_counts = sparse.csr_matrix((len(document_ids), len(terms.postings.starts) - 1))
            terms = terms.followed_by(no_counts if counts is None else counts)
        added = self.added.followed_by(document_ids, vectors, texts)
        state = replace(self, added=added, terms=terms)._with_fitting_base()
        is_outdated = are_first_texts or (state.terms is not None and state.terms.is_outdated)
        return state.with_fitted_terms() if is_outdated else state

    def without(self, document_ids: Sequence[str]) -> "IndexState":
        """Returns the state without some documents, which must be in it."""
        document_ids = list(dict.fromkeys(document_ids))
        missing = [document_id for document_id in document_ids if document_id not in self]
        if missing:
            raise KeyError(
                f"{len(missing)} of {len(document_ids)} documents are not in the index, such as {missing[:3]}. "
                "Nothing was deleted: leave them out."
            )
        base, added = self.base.without(document_ids), self.added.without(document_ids)
        return replace(self, base=base, added=added)._with_fitting_base()

    def _with_fitting_base(self) -> "IndexState":
        """Step 4, if it is time. It takes as long as what was changed since the last time, times a constant."""
        num_rows = len(self.base.documents) + len(self.added.documents)
        num_removed = num_rows - len(self)
        most_added = max(_MAX_ADDED_ROWS, round(_MAX_ADDED_SHARE * len(self.base.documents)))
        is_large = isinstance(self.base.vectors, ApproximateVectors) and len(self.added.documents) > most_added
        return self.rebased() if is_large or num_removed > _MAX_REMOVED_SHARE * num_rows else self

    def as_saved(self) -> "IndexState":
        """
        Returns a state that can be saved: the terms are fitted to all documents, and what approximate vectors do not
        have yet moves to a new base.
        """
        is_changed = len(self.added.documents) or self.base.removed.count
        if not is_changed:
            return self
        return self.rebased() if isinstance(self.base.vectors, ApproximateVectors) else self.with_fitted_terms()

    def rebased(self) -> "IndexState":
        """Returns the same documents in a new base, in the same order."""
        vectors = self.base.vectors
        if isinstance(vectors, FlatVectors):
            vectors = FlatVectors(self.vectors())
        elif self.base.removed.count:
            vectors = vectors.replaced_by(self.blocks())
        elif len(self.added.documents):
            vectors = vectors.followed_by(self.added.blocks())
        tables = [DOCUMENTS_SCHEMA.empty_table(), *self.tables()]
        state = IndexState.of(vectors, StoredDocuments(pa.concat_tables(tables)))
        return state if self.terms is None else state._with_postings(self.remaining_postings(self.terms))

    def remaining_postings(self, terms: TermIndex) -> Postings:
        """The terms of the documents, in their order."""
        return terms.remaining(self._is_live(), keeps_rows=False)

    def with_fitted_terms(self) -> "IndexState":
        """Returns the state with terms that are fitted to all documents."""
        if self.terms is None:
            return self
        return self._with_postings(self.terms.remaining(self._is_live(), keeps_rows=True))

    def _with_postings(self, postings: Postings) -> "IndexState":
        """The state with these terms, one row for each of its own rows, and with the weight that fits its vectors."""
        return replace(self, terms=TermIndex(postings, lexical_weight(self._sample())))

    def _sample(self) -> np.ndarray:
        """The vectors of some documents."""
        rows = np.array(sorted(sample_documents(range(len(self)), NUM_CALIBRATION_DOCUMENTS, seed=0)), dtype=int)
        parts, start = [np.empty((0, self.dim), dtype=np.float32)], 0
        for block in self.blocks():
            parts.append(block[rows[(rows >= start) & (rows < start + len(block))] - start])
            start += len(block)
        return np.concatenate(parts)

    def _is_live(self) -> np.ndarray:
        return np.concatenate([self.base.is_live(), self.added.is_live()])


__all__ = ["IndexState", "SearchHit", "Segment"]
