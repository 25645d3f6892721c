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
_BLOCK_SIZE = 1 << 17  # rows


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
    num_rows, num_clusters = len(cluster_ids), len(cluster_order)
    shuffled = np.arange(num_rows, dtype=_smallest_type(num_rows))
    generator.shuffle(shuffled)
    order, starts = group_rows(cluster_ids[shuffled], num_clusters)
    rows = shuffled[order]  # cluster by cluster, shuffled inside
    del shuffled, order
    sizes = np.diff(starts)
    num_full = sizes // batch_size * batch_size
    fills_batch = np.repeat(np.tile([True, False], num_clusters), np.stack([num_full, sizes - num_full], 1).ravel())
    full, left = rows[fills_batch], rows[~fills_batch]
    del rows, fills_batch
    num_lost = len(left) % batch_size
    if num_lost:
        left = np.delete(left, generator.choice(len(left), num_lost, replace=False))
    place_in_order = np.empty(num_clusters, dtype=_smallest_type(num_clusters))
    place_in_order[cluster_order] = np.arange(num_clusters)
    left = left[group_rows(place_in_order[cluster_ids[left]], num_clusters)[0]]
    return np.concatenate([full, left]).reshape(-1, batch_size)


def group_rows(group_ids: np.ndarray, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Sorts rows by their group, block by block, so that little more than the result is in memory.

    Args:
        group_ids (`np.ndarray` of shape `(num_rows,)`):
            Group of each row. It may be memory-mapped.
        num_groups (`int`):
            Number of groups.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: The row numbers, group by group and in ascending order inside, and where each
        group starts, of shape `(num_groups + 1,)`.
    """
    num_rows = len(group_ids)
    blocks = [slice(start, start + _BLOCK_SIZE) for start in range(0, num_rows, _BLOCK_SIZE)]
    starts = np.zeros(num_groups + 1, dtype=np.int64)
    for block in blocks:
        starts[1:] += np.bincount(group_ids[block], minlength=num_groups)
    starts = np.cumsum(starts)
    order, places = np.empty(num_rows, dtype=_smallest_type(num_rows)), starts[:-1].copy()
    for block in blocks:
        in_block = np.argsort(group_ids[block], kind="stable")
        counts = np.bincount(group_ids[block], minlength=num_groups)
        offsets = np.repeat(places - (np.cumsum(counts) - counts), counts)
        order[offsets + np.arange(len(in_block))] = in_block + block.start
        places += counts
    return order, starts


def _smallest_type(num_rows: int) -> type[np.signedinteger]:
    """The type of row numbers that takes least memory."""
    return np.int32 if num_rows <= np.iinfo(np.int32).max else np.int64


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


__all__ = ["group_rows", "nearest_neighbour_order", "pack_batches"]
