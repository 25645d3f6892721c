"""
Finds the documents of a batch that are probably right answers too, and should not count as negatives.

With the surrogate's score `f`, document `d'` is left out of the negatives of the pair `(q, d)` if
`f(q, d') >= f(q, d) + margin`. A text equal to the positive's, and the document of an equal query, always are; the
positive itself never is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .batch_plan import BatchPlan


@dataclass(frozen=True, eq=False)
class FalseNegativeFilter:
    """
    Filter of one batch plan, called with the row numbers of a batch.

    Args:
        plan (`BatchPlan`):
            The plan, whose surrogate vectors are read.
        margin (`float`, *optional*, defaults to `0.0`):
            How much a score may lie above the positive's before the document is left out. Negative: how much below it
            must lie.
        relative_margin (`float`, *optional*):
            The same as a share of the positive's score, in place of `margin`: `-0.05` leaves out all above 95 % of it.
    """

    plan: BatchPlan
    margin: float = 0.0
    relative_margin: float | None = None

    def __call__(self, rows: Sequence[int], queries: np.ndarray | None = None) -> np.ndarray:
        """
        Finds the false negatives of a batch.

        Args:
            rows (`Sequence[int]`):
                Row numbers of the batch.
            queries (`np.ndarray` of shape `(num_queries,)`, *optional*):
                Places in `rows` of the queries to look at. Defaults to all.

        Returns:
            `np.ndarray` of shape `(num_queries, num_rows + num_negatives)`: `True` where a document must not count as
            a negative. The columns are the documents of the rows and then their hard negatives, row by row.
        """
        rows = np.asarray(rows)
        queries = np.arange(len(rows)) if queries is None else queries
        scores = surrogate_scores(self.plan, rows, queries)  # (num_queries, num_rows + num_negatives)
        positives = scores[np.arange(len(queries)), queries][:, None]
        margin = self.margin if self.relative_margin is None else self.relative_margin * np.abs(positives)
        is_above = (scores >= positives + margin) & self._has_vectors(rows[queries])[:, None]
        is_false = is_above | self._has_equal_text(rows, queries)
        is_false[np.arange(len(queries)), queries] = False
        return is_false

    def _has_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Whether the surrogate knows words of query and document. What it does not know scores 0 with all."""
        return self.plan.filter_queries[rows].any(axis=1) & self.plan.filter_documents[rows].any(axis=1)

    def _has_equal_text(self, rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Whether a column's text is that of a document of an equal query, the positive's own among them."""
        query_hashes, documents = self.plan.text_hashes[rows].T
        places = negative_places(self.plan, rows)
        columns = documents if places is None else np.concatenate([documents, self.plan.negative_hashes[places]])
        is_equal_query = query_hashes[queries, None] == query_hashes
        is_equal_document = documents[:, None] == columns
        return (is_equal_query.astype(np.float32) @ is_equal_document.astype(np.float32)) > 0


def surrogate_scores(plan: BatchPlan, rows: np.ndarray, queries: np.ndarray | None = None) -> np.ndarray:
    """
    Scores of the queries of a batch with its documents and then its hard negatives, by the plan's filter surrogate.

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
    query_rows = rows if queries is None else rows[queries]
    query_vectors = plan.filter_queries[query_rows].astype(np.float32)
    documents = plan.filter_documents[rows].astype(np.float32)
    places = negative_places(plan, rows)
    if places is not None:
        documents = np.concatenate([documents, plan.filter_negatives[places].astype(np.float32)])
    return query_vectors @ documents.T


def negative_places(plan: BatchPlan, rows: np.ndarray) -> np.ndarray | None:
    """Places of the hard negatives of a batch among all of the plan's, row by row, if the data has any."""
    if plan.negative_offsets is None:
        return None
    starts, stops = plan.negative_offsets[rows], plan.negative_offsets[rows + 1]
    return np.concatenate([np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)])


__all__ = ["FalseNegativeFilter", "negative_places", "surrogate_scores"]
