"""
Packs clusters of any size into batches of one size, within a domain.

1. Shuffle the rows of each cluster and cut them into as many full batches as possible.
2. Concatenate the remaining rows, cluster by cluster, and cut them into batches. This merges small clusters that are
   neighbours in the order of the clusters. In a batch plan, clusters are numbered in a nearest-neighbour order.

Each domain drops fewer than `batch_size` rows, sampled at random from the rows that remain after step 1.
"""

import faiss
import numpy as np


_MAX_GREEDY = 2_000
_ITERATIONS = 10


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


def nearest_neighbour_order(centroids: np.ndarray) -> np.ndarray:
    """
    Orders centroids so that neighbours in the order are close, beginning with the first.

    Up to 2,000 are ordered greedily: each one is followed by the nearest that has no place yet. More of them are first
    put into about the square root of their number of groups by k-means. The groups are ordered greedily, and so are
    the centroids in each group, from the one nearest to the end of the group before. The time grows by the power 1.5.

    Args:
        centroids (`np.ndarray` of shape `(num_centroids, dim)`):
            The centroids.

    Returns:
        `np.ndarray` of shape `(num_centroids,)`: The numbers of the centroids, in this order.
    """
    centroids = np.ascontiguousarray(centroids, dtype=np.float32)
    if len(centroids) <= _MAX_GREEDY:
        return _greedy_order(centroids, centroids[0])
    num_groups = round(len(centroids) ** 0.5)
    kmeans = faiss.Kmeans(centroids.shape[1], num_groups, niter=_ITERATIONS, seed=0)
    kmeans.train(centroids)
    group_ids = kmeans.index.search(centroids, 1)[1][:, 0]
    groups = np.split(
        np.argsort(group_ids, kind="stable"), np.cumsum(np.bincount(group_ids, minlength=num_groups))[:-1]
    )
    order: list[np.ndarray] = []
    last = centroids[0]
    for group in _greedy_order(kmeans.centroids, last):
        if len(groups[group]):
            order.append(groups[group][_greedy_order(centroids[groups[group]], last)])
            last = centroids[order[-1][-1]]
    return np.concatenate(order)


def _greedy_order(vectors: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Numbers of vectors, from the one nearest to `start`. Each is followed by the nearest of those that are left."""
    half_squared_norms = np.einsum("ij,ij->i", vectors, vectors) / 2
    order = np.empty(len(vectors), dtype=np.int64)
    for step in range(len(vectors)):
        distances = half_squared_norms - vectors @ start
        order[step] = distances.argmin()
        half_squared_norms[order[step]], start = np.inf, vectors[order[step]]
    return order


__all__ = ["nearest_neighbour_order", "pack_batches"]
