"""
The terms of an index, for hybrid search: BM25 beside the vectors. Values: a change makes a new one.

1. A *fit* counts the tokens of the documents, sorts them by terms, and keeps BM25's statistics.
2. Documents that are added follow in a second part, with the statistics of the last fit.
3. Documents that are removed stay; whoever searches leaves them out.
4. When many were added, everything is fitted again. Texts are not read again for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse
from transformers import PreTrainedTokenizerBase

from ..evaluation.bm25 import Postings, TermStatistics
from ..evaluation.hybrid import lexical_scale
from ..modeling.term_vectors import count_documents, saturate


_MAX_ADDED_SHARE = 0.1
_GROWTH = 1.5


def count_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str | None]) -> sparse.csr_matrix | None:
    """
    Counts the tokens of documents, none where a text is unknown. `None` if all texts are unknown, or if the tokenizer
    is not one of transformers.
    """
    can_count = isinstance(tokenizer, PreTrainedTokenizerBase) and any(text is not None for text in texts)
    return count_documents(tokenizer, [text or "" for text in texts]) if can_count else None


class AddedTerms:
    """
    How often documents contain terms, document by document.

    All values that follow one another share their arrays, so only the newest may be followed by another one.
    """

    def __init__(self) -> None:
        self._num_rows, self._num_counts = 0, 0
        self._counts = np.empty(0, dtype=np.float32)  # (capacity,)
        self._term_ids = np.empty(0, dtype=np.int32)  # (capacity,)
        self._rows = np.empty(0, dtype=np.int32)  # (capacity,)
        self._lengths = np.empty(0, dtype=np.float32)  # (capacity of documents,)

    def __len__(self) -> int:
        """Number of documents."""
        return self._num_rows

    def followed_by(self, counts: sparse.csr_matrix) -> "AddedTerms":
        """Returns these documents and more, by the output of [`count_texts`]."""
        new, parts = AddedTerms(), counts.tocoo()
        new._num_rows = self._num_rows + counts.shape[0]
        new._num_counts = self._num_counts + counts.nnz
        new._counts = _extended(self._counts, self._num_counts, parts.data)
        new._term_ids = _extended(self._term_ids, self._num_counts, parts.col)
        new._rows = _extended(self._rows, self._num_counts, self._num_rows + parts.row)
        new._lengths = _extended(self._lengths, self._num_rows, np.asarray(counts.sum(axis=1)).ravel())
        return new

    def matrix(self, vocab_size: int) -> sparse.csr_matrix:
        """The counts of shape `(num_documents, vocab_size)`."""
        places = tuple(values[: self._num_counts] for values in (self._rows, self._term_ids))
        return sparse.csr_matrix((self._counts[: self._num_counts], places), shape=(self._num_rows, vocab_size))

    def scores(self, term_ids: np.ndarray, statistics: TermStatistics) -> np.ndarray:
        """The BM25 score of each document for a query of some distinct terms, of shape `(num_documents,)`."""
        idf = np.zeros_like(statistics.idf)
        idf[term_ids] = statistics.idf[term_ids]
        places = np.flatnonzero(idf[self._term_ids[: self._num_counts]])
        rows = self._rows[places]
        weights = saturate(self._counts[places], self._lengths[rows], statistics.mean_length)
        weights *= idf[self._term_ids[places]]
        return np.bincount(rows, weights=weights, minlength=len(self)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class TermIndex:
    """
    How often the documents of an index contain terms, in the rows of the index.

    Args:
        postings (`Postings`):
            The documents of the last fit, whose statistics weigh all terms.
        weight (`float`):
            How much the highest possible BM25 score of a query adds to the score of a document.
        added (`AddedTerms`, *optional*):
            The documents behind them.
    """

    postings: Postings
    weight: float
    added: AddedTerms = field(default_factory=AddedTerms)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.postings) + len(self.added)

    @property
    def is_outdated(self) -> bool:
        """Whether it is time for a new fit."""
        return len(self.added) > _MAX_ADDED_SHARE * len(self.postings)

    def followed_by(self, counts: sparse.csr_matrix) -> "TermIndex":
        """Returns these documents and more, by the output of [`count_texts`]."""
        return replace(self, added=self.added.followed_by(counts))

    def scores(self, term_ids: np.ndarray) -> np.ndarray:
        """What BM25 adds to the score of each row for a query of some distinct terms, of shape `(num_rows,)`."""
        return self._scaled_scores(term_ids, term_ids)

    def explain(self, term_ids: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        """What each term of a query adds to the scores of some rows, of shape `(num_terms, num_rows)`."""
        parts = [self._scaled_scores(term_ids[place : place + 1], term_ids)[rows] for place in range(len(term_ids))]
        return np.array(parts).reshape(len(term_ids), len(rows))

    def _scaled_scores(self, counted_ids: np.ndarray, term_ids: np.ndarray) -> np.ndarray:
        statistics = self.postings.statistics
        scores = np.concatenate([part.scores(counted_ids, statistics) for part in (self.postings, self.added)])
        scores *= lexical_scale(statistics, term_ids, self.weight)
        return scores

    def remaining(self, is_live: np.ndarray, *, keeps_rows: bool) -> Postings:
        """The remaining documents, sorted by terms, in the same rows or numbered again."""
        if is_live.all() and not len(self.added):
            return self.postings
        counts = sparse.vstack([self.postings.matrix, self.added.matrix(len(self.postings.starts) - 1)], format="csr")
        if not keeps_rows:
            return Postings.of(counts[is_live])
        counts.data[np.repeat(~is_live, np.diff(counts.indptr))] = 0
        counts.eliminate_zeros()
        return Postings.of(counts)


def _extended(array: np.ndarray, num_used: int, values: np.ndarray) -> np.ndarray:
    """Writes values behind those that are used, into a larger array if there is no room."""
    num_needed = num_used + len(values)
    if num_needed > len(array):
        larger = np.empty(int(_GROWTH * num_needed), dtype=array.dtype)
        larger[:num_used] = array[:num_used]
        array = larger
    array[num_used:num_needed] = values
    return array


__all__ = ["AddedTerms", "TermIndex", "count_texts"]
