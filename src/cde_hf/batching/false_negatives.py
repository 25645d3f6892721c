"""
Finds the documents of a batch that probably answer a query too and must not count as its negatives.

With the surrogate's score `f`, document `d'` is masked as a negative of the pair `(q, d)` if
`f(q, d') >= f(q, d) + margin`. A document that the data set pairs with the query somewhere is always masked, such as
the second answer of a query that has several. The positive itself never is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .batch_plan import BatchPlan, pair_keys


@dataclass(frozen=True, eq=False)
class FalseNegativeFilter:
    """
    Filter of one batch plan, called with the row numbers of a batch.

    Args:
        plan (`BatchPlan`):
            The plan, whose surrogate vectors are read.
        margin (`float`, *optional*, defaults to `0.0`):
            A document is masked if it scores at least the positive's score plus this margin. A negative margin is
            stricter: it also masks documents that score up to that much below the positive.
        relative_margin (`float`, *optional*):
            Margin as a share of the positive's absolute score, in place of `margin`. For example, `-0.05` masks every
            document that scores at least 95% of a positive score.
    """

    plan: BatchPlan
    margin: float = 0.0
    relative_margin: float | None = None

    def __call__(
        self, rows: Sequence[int] | np.ndarray, queries: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Scores a batch and finds its false negatives.

        Args:
            rows (`Sequence[int]` or `np.ndarray`):
                Row numbers of the batch.
            queries (`np.ndarray` of shape `(num_queries,)`, *optional*):
                Places in `rows` of the queries to look at. Defaults to all.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: The result of [`surrogate_scores`], and a mask that is `True` where a
            document must not count as a negative. Both have the shape `(num_queries, num_rows + num_negatives)`. The
            columns are the documents of the rows and then their hard negatives, row by row.
        """
        rows = np.asarray(rows)
        queries = np.arange(len(rows)) if queries is None else queries
        positives = np.arange(len(queries)), queries
        scores = surrogate_scores(self.plan, rows, queries)
        positive_scores = scores[positives][:, None]
        margin = self.margin if self.relative_margin is None else self.relative_margin * np.abs(positive_scores)
        # A text without a known word has a zero vector. Its score of exactly 0 with every text says nothing.
        is_false = (scores >= positive_scores + margin) & (positive_scores != 0)
        is_false[positives] = False
        return scores, is_false | self.known_answers(rows, queries)

    def known_answers(self, rows: Sequence[int] | np.ndarray, queries: np.ndarray | None = None) -> np.ndarray:
        """
        Finds the documents of a batch that the data set pairs with a query, in this batch or elsewhere.

        Args:
            rows (`Sequence[int]` or `np.ndarray`):
                Row numbers of the batch.
            queries (`np.ndarray` of shape `(num_queries,)`, *optional*):
                Places in `rows` of the queries to look at. Defaults to all.

        Returns:
            `np.ndarray` of shape `(num_queries, num_rows + num_negatives)`: `True` where a query has the document as
            an answer, except its own positive.
        """
        rows = np.asarray(rows)
        queries = np.arange(len(rows)) if queries is None else queries
        query_hashes, documents = self.plan.text_hashes[rows].T
        places = _negative_places(self.plan, rows)
        negatives = self.plan.negative_hashes if places is not None else None
        if negatives is not None:
            documents = np.concatenate([documents, negatives[places]])
        keys = pair_keys(query_hashes[queries, None], documents)
        answers, order = self.plan.answers, np.argsort(keys, axis=None)
        ordered = keys.ravel()[order]  # found among millions of answers in a tenth of the time
        found = np.empty(keys.shape, dtype=bool)
        found.ravel()[order] = answers[np.minimum(np.searchsorted(answers, ordered), len(answers) - 1)] == ordered
        found[np.arange(len(queries)), queries] = False
        return found


def surrogate_scores(plan: BatchPlan, rows: np.ndarray, queries: np.ndarray | None = None) -> np.ndarray:
    """
    Scores the queries of a batch with its documents and then its hard negatives, by the plan's filter surrogate.

    Args:
        plan (`BatchPlan`):
            The plan.
        rows (`np.ndarray` of shape `(num_rows,)`):
            Row numbers of the batch.
        queries (`np.ndarray` of shape `(num_queries,)`, *optional*):
            Places in `rows` of the queries to look at. Defaults to all.

    Returns:
        `np.ndarray` of shape `(num_queries, num_rows + num_negatives)`: The scores, in float32.
    """
    places = _negative_places(plan, rows)
    query_vectors = plan.filter_queries[rows if queries is None else rows[queries]].astype(np.float32)
    document_vectors = plan.filter_documents[rows].astype(np.float32)
    negatives = plan.filter_negatives if places is not None else None
    if negatives is not None:
        document_vectors = np.concatenate([document_vectors, negatives[places].astype(np.float32)])
    return query_vectors @ document_vectors.T


def _negative_places(plan: BatchPlan, rows: np.ndarray) -> np.ndarray | None:
    """Places of the batch's hard negatives in the plan's arrays, row by row, if the data has any."""
    if plan.negative_offsets is None:
        return None
    starts, stops = plan.negative_offsets[rows], plan.negative_offsets[rows + 1]
    return np.concatenate([np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)])


__all__ = ["FalseNegativeFilter", "surrogate_scores"]
