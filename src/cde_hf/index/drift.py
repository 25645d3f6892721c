"""Drift: how far a corpus has moved since its context was sampled."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..modeling import Context, sample_documents
from ..modeling.term_vectors import share_of_unknown_terms


REBUILD_THRESHOLD = 4.0
UNKNOWN_TERMS_THRESHOLD = 0.35

_MAX_CONTEXT_SIZE = 64
_NUM_TEXTS = 1000


@dataclass(frozen=True)
class CorpusMoments:
    """
    Centre and spread of the vectors of a corpus.

    Args:
        mean (`np.ndarray` of shape `(dim,)`):
            Mean of the vectors.
        variance (`float`):
            Mean squared distance of the vectors from their mean.
        num_documents (`int`):
            Number of vectors.
    """

    mean: np.ndarray
    variance: float
    num_documents: int

    @classmethod
    def of(cls, vectors: np.ndarray) -> "CorpusMoments":
        """Returns the moments of vectors of shape `(num_documents, dim)`."""
        mean = vectors.mean(axis=0, dtype=np.float64)
        mean_square = float(np.einsum("ij,ij->", vectors, vectors, dtype=np.float64)) / len(vectors)
        return cls(mean, max(0.0, mean_square - float(mean @ mean)), len(vectors))

    @classmethod
    def of_blocks(cls, blocks: Iterable[np.ndarray]) -> "CorpusMoments":
        """Returns the moments of the vectors of all blocks together."""
        return reduce(cls.and_of, (cls.of(block) for block in blocks if len(block)))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, for JSON."""
        return {**asdict(self), "mean": self.mean.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "CorpusMoments":
        """Reads the output of [`CorpusMoments.to_dict`]."""
        return cls(**{**values, "mean": np.array(values["mean"])})

    def and_of(self, other: "CorpusMoments") -> "CorpusMoments":
        """Returns the moments of both corpora together."""
        num_documents = self.num_documents + other.num_documents
        share = other.num_documents / num_documents
        between = share * (1 - share) * float(np.sum((self.mean - other.mean) ** 2))
        variance = (1 - share) * self.variance + share * other.variance + between
        return CorpusMoments((1 - share) * self.mean + share * other.mean, variance, num_documents)


@dataclass(frozen=True)
class Drift:
    """
    How far a corpus has moved away from its context. Made by [`ContextualIndex.drift`].

    Args:
        value (`float`):
            Squared distance between the mean vectors of the corpus now and when the index was built. The unit is the
            sampling error of the context: the variance of the vectors divided by the number of context documents, at
            most 64.
            Below 1, the change is smaller than the difference between two samples.
        num_documents (`int`):
            Number of documents when the index was built.
        num_documents_now (`int`):
            Number of documents now, including new ones.
        unknown_terms (`float`, *optional*):
            Share of the documents' term weight that the corpus part does not know, of new documents if there are any.
            `None` without a corpus part.
    """

    value: float
    num_documents: int
    num_documents_now: int
    unknown_terms: float | None = None

    @property
    def should_rebuild(self) -> bool:
        """
        Whether to build the index again with a context of the current corpus: above a value of 4, at which the corpus
        is two standard errors away, or if more than 0.35 of the term weight is unknown.
        """
        return self.value > REBUILD_THRESHOLD or (self.unknown_terms or 0) > UNKNOWN_TERMS_THRESHOLD

    def __str__(self) -> str:
        advice = "build the index again with a new context" if self.should_rebuild else "the context still fits"
        unknown = "" if self.unknown_terms is None else f", {self.unknown_terms:.0%} of the term weight unknown"
        return (
            f"drift {self.value:.2f} (rebuild above {REBUILD_THRESHOLD:g}), {self.num_documents:,} documents when "
            f"built and {self.num_documents_now:,} now{unknown}: {advice}"
        )


def unknown_terms(tokenizer: PreTrainedTokenizerBase, context: Context, documents: Sequence[str]) -> float | None:
    """Returns the share of the term weight of (a sample of) documents that the corpus part of a context lacks."""
    if context.terms is None:
        return None
    sample = sample_documents(documents, _NUM_TEXTS)
    return share_of_unknown_terms(tokenizer, context.terms, sample, num_documents=context.num_documents)


def measure_drift(
    then: CorpusMoments, now: CorpusMoments, *, context_size: int, unknown_terms: float | None = None
) -> Drift:
    """
    Compares a corpus with its earlier state.

    Args:
        then (`CorpusMoments`):
            The corpus from which the context was sampled.
        now (`CorpusMoments`):
            The corpus now.
        context_size (`int`):
            Number of context documents.
        unknown_terms (`float`, *optional*):
            Share of term weight that the corpus part does not know.

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
    error = max(then.variance, float(np.finfo(np.float32).tiny)) / min(context_size, _MAX_CONTEXT_SIZE)
    return Drift(distance / error, then.num_documents, now.num_documents, unknown_terms)


__all__ = ["REBUILD_THRESHOLD", "CorpusMoments", "Drift", "measure_drift", "unknown_terms"]
