"""How far a corpus has moved since its context was drawn."""

from dataclasses import dataclass

import numpy as np


REBUILD_THRESHOLD = 4.0


@dataclass(frozen=True)
class CorpusMoments:
    """
    Centre and spread of the vectors of a corpus.

    Args:
        mean (`np.ndarray` of shape `(dim,)`):
            Mean of the vectors.
        variance (`float`):
            Mean squared distance of a vector from it.
        num_documents (`int`):
            Number of vectors.
    """

    mean: np.ndarray
    variance: float
    num_documents: int

    @classmethod
    def of(cls, vectors: np.ndarray) -> "CorpusMoments":
        """The moments of vectors of shape `(num_documents, dim)`."""
        mean = vectors.mean(axis=0, dtype=np.float64)
        mean_square = float(np.einsum("ij,ij->", vectors, vectors, dtype=np.float64)) / len(vectors)
        return cls(mean, max(0.0, mean_square - float(mean @ mean)), len(vectors))

    def and_of(self, other: "CorpusMoments") -> "CorpusMoments":
        """The moments of both together."""
        num_documents = self.num_documents + other.num_documents
        share = other.num_documents / num_documents
        between = share * (1 - share) * float(np.sum((self.mean - other.mean) ** 2))
        variance = (1 - share) * self.variance + share * other.variance + between
        return CorpusMoments((1 - share) * self.mean + share * other.mean, variance, num_documents)


@dataclass(frozen=True)
class Drift:
    """
    How far a corpus has moved from its context, made by [`ContextualIndex.drift`].

    Args:
        value (`float`):
            Squared distance between the mean vector of the corpus now and when the index was built, in units of the
            squared error that a context makes anyway by being a sample: the variance of the vectors over the number
            of context documents. Below 1 nobody could tell from the context that the corpus has changed.
        num_documents (`int`):
            Number of documents when the index was built.
        num_documents_now (`int`):
            Number of documents now, with the new ones.
        threshold (`float`, *optional*, defaults to `4.0`):
            Value from which on a new context is worth its cost: the corpus is two standard errors away.
    """

    value: float
    num_documents: int
    num_documents_now: int
    threshold: float = REBUILD_THRESHOLD

    @property
    def should_rebuild(self) -> bool:
        """Whether to build the index again, with a context of the corpus as it is now."""
        return self.value > self.threshold

    def __str__(self) -> str:
        advice = "build it again with a new context" if self.should_rebuild else "its context still fits"
        return (
            f"drift {self.value:.2f} (rebuild above {self.threshold:g}), {self.num_documents:,} documents when built "
            f"and {self.num_documents_now:,} now: {advice}"
        )


def measure_drift(then: CorpusMoments, now: CorpusMoments, *, context_size: int) -> Drift:
    """
    Compares a corpus with what it was.

    Args:
        then (`CorpusMoments`):
            The corpus from which the context was drawn.
        now (`CorpusMoments`):
            The corpus now.
        context_size (`int`):
            Number of context documents.

    Example:

    ```python
    >>> then = CorpusMoments.of(np.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> measure_drift(then, then.and_of(then), context_size=64).value
    0.0
    >>> measure_drift(then, CorpusMoments.of(np.array([[1.0, 0.0]])), context_size=64).should_rebuild
    True

    ```
    """
    distance = float(np.sum((now.mean - then.mean) ** 2))
    error = max(then.variance, float(np.finfo(np.float32).tiny)) / context_size
    return Drift(distance / error, then.num_documents, now.num_documents)


__all__ = ["REBUILD_THRESHOLD", "CorpusMoments", "Drift", "measure_drift"]
