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


def _best_of_block(queries: Tensor, documents: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    scores = queries @ documents.T  # (num_queries, num_documents)
    return scores.topk(min(depth, len(documents)), dim=1)


__all__ = ["Ranking", "search_vectors"]
