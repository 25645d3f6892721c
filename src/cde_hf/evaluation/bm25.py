"""BM25 on the tokens of a model, with Lucene's formula and defaults."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from transformers import PreTrainedTokenizerBase

from ..modeling.term_vectors import (
    MAX_WEIGHT,
    count_documents,
    count_terms,
    inverse_document_frequencies,
    length_penalty,
)
from .exact_search import Ranking, best_documents


_DOCUMENTS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class TermStatistics:
    """
    What BM25 knows of a corpus. Documents without terms do not count.

    Args:
        idf (`np.ndarray` of shape `(vocab_size,)`):
            Inverse document frequency of each token. A token that no document contains has the largest one.
        mean_length (`float`):
            Mean number of tokens of a document.
    """

    idf: np.ndarray
    mean_length: float

    def bound(self, term_ids: np.ndarray) -> float:
        """What no document's score for a query of these terms can exceed."""
        return MAX_WEIGHT * float(self.idf[term_ids].sum())


class Postings:
    """
    How often documents contain terms, term by term. The arrays may be memory-mapped files.

    Args:
        counts (`np.ndarray` of shape `(num_postings,)`):
            How often a document contains a term.
        rows (`np.ndarray` of shape `(num_postings,)`):
            The document. Those of a term are in ascending order.
        starts (`np.ndarray` of shape `(vocab_size + 1,)`):
            Where each term's postings start.
        lengths (`np.ndarray` of shape `(num_documents,)`):
            Number of tokens of each document.
    """

    def __init__(self, counts: np.ndarray, rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray):
        self.counts, self.rows, self.starts, self.lengths = counts, rows, starts, lengths

    @classmethod
    def of(cls, counts: sparse.csr_matrix) -> "Postings":
        """Sorts the output of [`count_documents`] by terms."""
        by_term = counts.tocsc()
        lengths = np.asarray(counts.sum(axis=1), dtype=np.float32).ravel()
        rows = by_term.indices.astype(np.int32, copy=False)
        return cls(by_term.data.astype(np.float32, copy=False), rows, by_term.indptr, lengths)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    @property
    def matrix(self) -> sparse.csr_matrix:
        """The counts of shape `(num_documents, vocab_size)`."""
        shape = (len(self), len(self.starts) - 1)
        return sparse.csc_matrix((self.counts, self.rows, self.starts), shape=shape).tocsr()

    @cached_property
    def statistics(self) -> TermStatistics:
        """The statistics of these documents."""
        num_documents = int(np.count_nonzero(self.lengths))
        mean_length = float(self.lengths.sum(dtype=np.float64)) / max(1, num_documents)
        return TermStatistics(inverse_document_frequencies(np.diff(self.starts), num_documents), mean_length)

    def scores(self, term_ids: np.ndarray, statistics: TermStatistics) -> np.ndarray:
        """The BM25 score of each document for a query of some distinct terms, of shape `(num_documents,)`."""
        scores = np.zeros(len(self), dtype=np.float32)
        penalties = length_penalty(self.lengths, max(statistics.mean_length, 1.0))
        for term_id in term_ids.tolist():
            part = slice(self.starts[term_id], self.starts[term_id + 1])
            rows, counts = self.rows[part].astype(np.intp), self.counts[part]
            # In place and with rows that are converted once: frequent terms are in most documents.
            weights = penalties[rows]
            weights += counts
            np.divide(counts, weights, out=weights)
            weights *= MAX_WEIGHT * statistics.idf[term_id]
            np.add.at(scores, rows, weights)
        return scores


def query_terms(tokenizer: PreTrainedTokenizerBase, queries: Sequence[str]) -> list[np.ndarray]:
    """The distinct tokens of each query."""
    return [term_ids.numpy() for term_ids, _ in count_terms(tokenizer, queries)] if queries else []


class BM25:
    """
    A [`Ranker`] that compares tokens: BM25 on complete texts, with the tokens of a model as terms and no stop words.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The tokenizer, such as `model.tokenizer`.
        name (`str`, *optional*, defaults to `"BM25"`):
            Name of its row in a table.

    Example:

    ```python
    >>> from cde_hf import BM25, model_path
    >>> from transformers import AutoTokenizer
    >>> bm25 = BM25(AutoTokenizer.from_pretrained(model_path("minilm")))
    >>> bm25.rank(["barking dogs"], ["The cat sleeps.", "A dog barks at dogs.", ""], depth=2).document_indices.tolist()
    [[1, -1]]

    ```
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str = "BM25"):
        self.tokenizer = tokenizer
        self.name = name

    def rank(self, queries: Sequence[str], documents: Sequence[str], *, depth: int) -> Ranking:
        """
        Ranks the documents that share a token with a query.

        Args:
            queries (`Sequence[str]`):
                The queries.
            documents (`Sequence[str]`):
                The complete corpus. An empty document is never found.
            depth (`int`):
                Number of documents to return for each query.
        """
        terms = query_terms(self.tokenizer, queries)
        counts = count_documents(self.tokenizer, documents)
        statistics = Postings.of(counts).statistics
        found = best_documents((block for block, _ in lexical_blocks(terms, counts, statistics)), depth=depth)
        return Ranking(np.where(found.scores > 0, found.document_indices, -1), found.scores)


def lexical_blocks(
    terms: Sequence[np.ndarray], counts: sparse.csr_matrix, statistics: TermStatistics
) -> Iterator[tuple[np.ndarray, slice]]:
    """BM25 scores of queries of some terms for some thousand documents at once, and which documents they are."""
    for start in range(0, counts.shape[0], _DOCUMENTS_AT_ONCE):
        block = slice(start, min(start + _DOCUMENTS_AT_ONCE, counts.shape[0]))
        postings = Postings.of(counts[block])
        yield np.stack([postings.scores(term_ids, statistics) for term_ids in terms]), block


__all__ = ["BM25", "Postings", "TermStatistics", "lexical_blocks", "query_terms"]
