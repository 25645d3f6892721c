"""Exact search for evaluations: finds the documents with the largest inner products, block by block."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


_QUERIES_AT_ONCE = 512


@dataclass(frozen=True)
class Ranking:
    """
    The best documents of each query, best first.

    Args:
        document_indices (`np.ndarray` of shape `(num_queries, depth)`):
            Positions of the documents in the corpus, -1 where a query found fewer than `depth` documents.
        scores (`np.ndarray` of shape `(num_queries, depth)`):
            Their scores.
    """

    document_indices: np.ndarray
    scores: np.ndarray


def search_vectors(query_vectors: np.ndarray, document_blocks: Iterable[np.ndarray], *, depth: int) -> Ranking:
    """
    Finds the documents with the largest inner products, with one block of documents in memory at a time.

    Args:
        query_vectors (`np.ndarray` of shape `(num_queries, dim)`):
            Vectors of the queries, as [`check_vectors`] returns them.
        document_blocks (iterable of `np.ndarray` of shape `(num_documents, dim)`):
            Vectors of the documents, checked as well, in blocks of any size.
        depth (`int`):
            Number of documents to return for each query; all of them if there are fewer.

    Returns:
        `Ranking`: The documents, numbered across all blocks.

    Example:

    ```python
    >>> ranking = search_vectors(np.eye(2), [np.array([[0.0, 1.0]]), np.array([[3.0, 2.0]])], depth=2)
    >>> ranking.document_indices.tolist()
    [[1, 0], [1, 0]]

    ```
    """
    queries = torch.from_numpy(np.ascontiguousarray(query_vectors, dtype=np.float32))
    scores, indices = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    num_seen = 0
    for block in document_blocks:
        documents = torch.from_numpy(np.ascontiguousarray(block, dtype=np.float32))
        parts = [_best_of_block(part, documents, depth) for part in queries.split(_QUERIES_AT_ONCE)]
        scores = torch.cat([scores, torch.cat([part_scores for part_scores, _ in parts])], dim=1)
        indices = torch.cat([indices, torch.cat([part_indices for _, part_indices in parts]) + num_seen], dim=1)
        scores, places = scores.topk(min(depth, scores.shape[1]), dim=1)
        indices = indices.gather(1, places)
        num_seen += len(documents)
    return Ranking(indices.numpy(), scores.numpy())


def check_vectors(
    vectors: np.ndarray,
    name: str,
    *,
    num_texts: int | None = None,
    width: int | None = None,
    is_cosine: bool = False,
) -> np.ndarray:
    """
    Returns vectors as a finite float32 matrix, or says what is wrong with them.

    Args:
        vectors (`np.ndarray`):
            The vectors of some texts.
        name (`str`):
            Name of the texts, for the message.
        num_texts (`int`, *optional*):
            Expected number of rows.
        width (`int`, *optional*):
            Expected number of columns.
        is_cosine (`bool`, *optional*, defaults to `False`):
            Whether vectors are compared by the cosine, in which case they are returned unit-norm.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or (num_texts is not None and len(vectors) != num_texts):
        expected = f"({'num_texts' if num_texts is None else num_texts}, dim)"
        raise ValueError(
            f"The vectors of {name} have the shape {vectors.shape}, expected {expected}. Give one row for each text."
        )
    if width is not None and vectors.shape[1] != width:
        raise ValueError(
            f"The vectors of {name} have {vectors.shape[1]} dimensions, but are compared with vectors of {width}. "
            "Use the same model for both."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.vecdot(vectors, vectors))  # not finite where the vector is not: one pass, no copy
    num_bad = len(vectors) - int(np.isfinite(norms).sum())
    if num_bad:
        raise ValueError(
            f"{num_bad} of the {len(vectors)} vectors of {name} are not finite (NaN or infinite). Check for a "
            "diverged model or an overflow in half precision."
        )
    if is_cosine and (np.abs(norms - 1) > 1e-3).any():
        vectors = vectors / np.maximum(norms, np.finfo(np.float32).tiny)[:, np.newaxis]
    return vectors


def _best_of_block(queries: Tensor, documents: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    scores = queries @ documents.T  # (num_queries, num_documents)
    return scores.topk(min(depth, len(documents)), dim=1)


__all__ = ["Ranking", "check_vectors", "search_vectors"]
