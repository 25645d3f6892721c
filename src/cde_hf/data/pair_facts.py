"""Counts that describe training pairs, and signs of weak labels."""

from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from ..messages import count_of
from .cleaning import check_pairs


_ROWS_PER_BATCH = 10_000
_MANY_ANSWERS = 0.2


@dataclass(frozen=True)
class PairFacts:
    """
    Counts of pairs and of their different texts.

    Args:
        num_pairs (`int`):
            Number of pairs.
        num_queries (`int`):
            Number of different queries.
        num_documents (`int`):
            Number of different documents.
        num_with_several_answers (`int`):
            Number of queries with more than one document.
    """

    num_pairs: int
    num_queries: int
    num_documents: int
    num_with_several_answers: int

    @classmethod
    def of(cls, dataset: Dataset) -> "PairFacts":
        """Counts the pairs of a data set. Refuses pairs that are all alike, from which nothing can be learned."""
        check_pairs(dataset)
        queries, documents = (_hashes(dataset, name) for name in ("query", "document"))
        different = np.unique(np.stack([queries, documents]), axis=1)
        counts = np.unique(different[0], return_counts=True)[1]
        num_queries, num_documents = len(counts), len(np.unique(documents))
        if num_queries < 2 or num_documents < 2:
            raise ValueError(
                f"The data has {count_of(len(dataset), 'pair')} with {count_of(num_queries, 'different query')} and "
                f"{count_of(num_documents, 'different document')}. A model learns by telling pairs apart: give pairs "
                "with different texts on both sides."
            )
        return cls(len(dataset), num_queries, num_documents, int((counts > 1).sum()))

    def __str__(self) -> str:
        return (
            f"{count_of(self.num_pairs, 'pair')}: {count_of(self.num_queries, 'different query')}, "
            f"{self.num_with_several_answers:,} of them with several answers, and "
            f"{count_of(self.num_documents, 'different document')}."
        )

    @property
    def has_many_answers(self) -> bool:
        """Whether the data set is likely to have answers that it does not name."""
        return self.num_with_several_answers > _MANY_ANSWERS * self.num_queries


def _hashes(dataset: Dataset, name: str) -> np.ndarray:
    """Numbers that stand for the texts of a column, so that millions fit in memory."""
    batches = dataset.with_format(None).select_columns([name]).iter(batch_size=_ROWS_PER_BATCH)
    return np.fromiter((hash(text.strip()) for batch in batches for text in batch[name]), np.int64, len(dataset))


__all__ = ["PairFacts"]
