"""Exact search for evaluations: finds the documents with the largest inner products, block by block."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch


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
    blocks = (torch.from_numpy(np.ascontiguousarray(block, dtype=np.float32)) for block in document_blocks)
    return best_documents(((queries @ block.T).numpy() for block in blocks), depth=depth)


def best_documents(score_blocks: Iterable[np.ndarray], *, depth: int) -> Ranking:
    """
    Finds the documents with the largest scores.

    Args:
        score_blocks (iterable of `np.ndarray` of shape `(num_queries, num_documents)`):
            Scores of the documents, some thousand at once.
        depth (`int`):
            Number of documents to return for each query; all of them if there are fewer.

    Returns:
        `Ranking`: The documents, numbered across all blocks.
    """
    best, num_seen = None, 0
    for block in score_blocks:
        scores, indices = torch.from_numpy(block).topk(min(depth, block.shape[1]), dim=1)
        indices = indices + num_seen
        num_seen += block.shape[1]
        if best is not None:
            scores, indices = torch.cat([best[0], scores], dim=1), torch.cat([best[1], indices], dim=1)
            scores, places = scores.topk(min(depth, scores.shape[1]), dim=1)
            indices = indices.gather(1, places)
        best = scores, indices
    if best is None:
        raise ValueError("There are no documents to search in. Give at least one block.")
    return Ranking(best[1].numpy(), best[0].numpy())


__all__ = ["Ranking", "best_documents", "search_vectors"]
