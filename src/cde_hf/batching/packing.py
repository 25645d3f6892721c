"""
Packs clusters of any size into batches of one size, within a domain.

1. Shuffle the rows of each cluster and cut them into as many full batches as possible.
2. Concatenate the remaining rows, cluster by cluster, and cut them into batches. This merges small clusters that are
   neighbours in the order of the clusters, which is random or a greedy nearest-neighbour ordering.

Each domain drops fewer than `batch_size` rows, sampled at random from the rows that remain after step 1.
"""

import faiss
import numpy as np


_NUM_NEIGHBOURS = 32


def pack_batches(
    cluster_ids: np.ndarray, batch_size: int, *, cluster_order: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """
    Fills batches of equal size from clusters.

    Args:
        cluster_ids (`np.ndarray` of shape `(num_rows,)`):
            Cluster of each row, from 0.
        batch_size (`int`):
            Number of rows in a batch.
        cluster_order (`np.ndarray` of shape `(num_clusters,)`):
            Permutation of the clusters. Neighbours in this order are merged.
        generator (`np.random.Generator`):
            Random generator for shuffling.

    Returns:
        `np.ndarray` of shape `(num_rows // batch_size, batch_size)`: Row numbers.
    """
    num_rows = len(cluster_ids)
    shuffled = generator.permutation(num_rows)
    rows = shuffled[np.argsort(cluster_ids[shuffled], kind="stable")]  # cluster by cluster, shuffled inside
    sizes = np.bincount(cluster_ids, minlength=len(cluster_order))
    place_in_cluster = np.arange(num_rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    fills_batch = place_in_cluster < np.repeat(sizes // batch_size * batch_size, sizes)
    left = rows[~fills_batch]
    num_lost = len(left) % batch_size
    if num_lost:
        left = np.delete(left, generator.choice(len(left), num_lost, replace=False))
    place_in_order = np.empty(len(cluster_order), dtype=np.int64)
    place_in_order[cluster_order] = np.arange(len(cluster_order))
    left = left[np.argsort(place_in_order[cluster_ids[left]], kind="stable")]
    return np.concatenate([rows[fills_batch], left]).reshape(-1, batch_size)


def neighbour_table(centroids: np.ndarray) -> np.ndarray:
    """
    Finds the nearest centroids of each centroid, nearest first, for [`nearest_neighbour_order`].

    Returns:
        `np.ndarray` of shape `(num_centroids, min(32, num_centroids))`: Numbers of the neighbours.
    """
    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(np.ascontiguousarray(centroids, dtype=np.float32))
    return index.search(np.ascontiguousarray(centroids, dtype=np.float32), min(_NUM_NEIGHBOURS, len(centroids)))[1]


def nearest_neighbour_order(centroids: np.ndarray, *, start: int, neighbours: np.ndarray | None = None) -> np.ndarray:
    """
    Orders centroids greedily: each one is followed by the nearest centroid that has no place in the order yet.

    A table of nearest neighbours answers almost every step. Distances to all remaining centroids are computed only if
    every neighbour in the table already has its place. The order is the same as by computing all distances.

    Args:
        centroids (`np.ndarray` of shape `(num_centroids, dim)`):
            The centroids.
        start (`int`):
            Number of the first centroid.
        neighbours (`np.ndarray`, *optional*):
            Result of [`neighbour_table`], which is the same for every `start`.

    Returns:
        `np.ndarray` of shape `(num_centroids,)`: The numbers of the centroids, in this order.
    """
    neighbours = neighbour_table(centroids) if neighbours is None else neighbours
    num_centroids = len(centroids)
    centroids = np.asarray(centroids, dtype=np.float32)
    half_squared_norms = np.einsum("ij,ij->i", centroids, centroids) / 2
    is_left = np.ones(num_centroids, dtype=bool)
    order = np.empty(num_centroids, dtype=np.int64)
    order[0], is_left[start] = start, False
    left = np.flatnonzero(is_left)
    for step in range(1, num_centroids):
        here = order[step - 1]
        candidates = neighbours[here][is_left[neighbours[here]]]
        if len(candidates):
            nearest = candidates[0]
        else:
            left = left[is_left[left]]
            nearest = left[np.argmin(half_squared_norms[left] - centroids[left] @ centroids[here])]
        order[step], is_left[nearest] = nearest, False
    return order


__all__ = ["nearest_neighbour_order", "neighbour_table", "pack_batches"]
