"""Whitening, a baseline of evaluations: removes the directions that all documents of a corpus share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..vectors import check_vectors
from .systems import Embedder


@dataclass(frozen=True)
class Whitening:
    """
    A linear map that gives the documents it was fitted on zero mean and equal variance in all directions.

    Args:
        mean (`np.ndarray` of shape `(dim,)`):
            Mean of the documents' vectors.
        matrix (`np.ndarray` of shape `(dim, dim)`):
            Inverse square root of their covariance.
    """

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Returns unit-norm whitened vectors; the zero vector for a vector equal to the mean."""
        whitened = (vectors - self.mean) @ self.matrix
        lengths = np.linalg.norm(whitened, axis=1, keepdims=True)
        return whitened / np.maximum(lengths, np.finfo(np.float32).tiny)


def fit_whitening(vectors: np.ndarray, *, shrinkage: float = 0.9) -> Whitening:
    """
    Fits a whitening to the vectors of a corpus' documents.

    The covariance is mixed with the multiple of the identity that has the same trace, so that it can be inverted with
    fewer documents than dimensions. The share of the identity is fixed. A share that estimates the covariance well,
    such as Ledoit and Wolf's, is far too small for retrieval.

    Args:
        vectors (`np.ndarray` of shape `(num_documents, dim)`):
            Vectors of at least two documents.
        shrinkage (`float`, *optional*, defaults to `0.9`):
            Share of the identity, above 0. At 1, vectors are only centred.

    Example:

    ```python
    >>> vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 10.0], [0.0, -10.0]])
    >>> fit_whitening(vectors, shrinkage=0.001).matrix.round(2)
    array([[1.38, 0.  ],
           [0.  , 0.14]], dtype=float32)

    ```
    """
    if not 0 < shrinkage <= 1:
        raise ValueError(f"`shrinkage` must be above 0 and at most 1, got {shrinkage}. Use 0.9 if in doubt.")
    vectors = check_vectors(vectors, "the context documents").astype(np.float64)
    if len(vectors) < 2 or np.allclose(vectors, vectors[0]):
        raise ValueError(
            f"Whitening needs at least two different documents, got {len(vectors)} with the same vector. Give more "
            "context documents."
        )
    covariance = np.cov(vectors, rowvar=False, bias=True)
    identity = np.eye(len(covariance)) * np.trace(covariance) / len(covariance)
    eigenvalues, eigenvectors = np.linalg.eigh((1 - shrinkage) * covariance + shrinkage * identity)
    matrix = (eigenvectors / np.sqrt(eigenvalues)) @ eigenvectors.T
    return Whitening(vectors.mean(axis=0).astype(np.float32), matrix.astype(np.float32))


class WhitenedEmbedder:
    """
    A [`ContextualEmbedder`] that whitens the vectors of another embedder with the context documents' own vectors.

    Args:
        embedder (`Embedder`):
            Embeds the texts. Without a context, its vectors stay unchanged.
        name (`str`, *optional*):
            Name of its row in a table. Defaults to the embedder's name and the word whitened.
    """

    def __init__(self, embedder: Embedder, name: str | None = None):
        self.embedder = embedder
        self.name = name or f"{embedder.name}, whitened"
        self.whitening: Whitening | None = None

    def set_context(self, documents: Sequence[str] | None) -> None:
        """Fits the whitening to documents of the corpus, or removes it."""
        self.whitening = None
        if documents is not None:
            self.whitening = fit_whitening(self.embedder.embed_documents(documents))

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of shape `(num_texts, dim)`."""
        vectors = self.embedder.embed_queries(texts)
        return vectors if self.whitening is None else self.whitening(vectors)

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of shape `(num_texts, dim)`."""
        vectors = self.embedder.embed_documents(texts)
        return vectors if self.whitening is None else self.whitening(vectors)


__all__ = ["WhitenedEmbedder", "Whitening", "fit_whitening"]
