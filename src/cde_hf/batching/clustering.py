"""
Paired k-means: clusters pairs so that each query is close to the documents of the other pairs.

Two pairs are close if each query is close to the other pair's document. With surrogate vectors `q` and `d` this is
Euclidean k-means over both concatenations of every pair:

1. The rows `d⊕q` and `q⊕d` of all pairs, or of a sample if there are many, train FAISS k-means from several starts.
2. Half of the starts sample the first centroids at random, the others spread them (AFK-MC²). Each kind finds clusters
   that the other misses. The start with the best objective wins.
3. A pair belongs to the cluster of its row `d⊕q`.
"""

from dataclasses import dataclass

import faiss
import numpy as np

from ..data import check_counts, check_seed


_BLOCK_SIZE = 65_536
_MIN_PAIRS_PER_CLUSTER = 20  # the sample is never smaller


@dataclass(frozen=True)
class KMeansSettings:
    """
    Settings of [`cluster_pairs`]. The iterations are the paper's; its three random starts are half of ours.

    Args:
        num_iterations (`int`, *optional*, defaults to `100`):
            Iterations of each start.
        num_starts (`int`, *optional*, defaults to `6`):
            Number of starts, of which the best is kept. Half of them are random (one more if the number is odd), the
            others spread the first centroids.
        spherical (`bool`, *optional*, defaults to `False`):
            Whether rows and centroids are unit-norm and compared by inner product.
        max_training_pairs (`int`, *optional*, defaults to `1000000`):
            Number of pairs to train on. A larger set is sampled, and then all its pairs are assigned in blocks.
        seed (`int`, *optional*, defaults to `0`):
            Random seed of the starts and of the sample.
    """

    num_iterations: int = 100
    num_starts: int = 6
    spherical: bool = False
    max_training_pairs: int = 1_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(
            num_iterations=self.num_iterations,
            num_starts=self.num_starts,
            max_training_pairs=self.max_training_pairs,
        )
        check_seed(self.seed)


def cluster_pairs(
    queries: np.ndarray,
    documents: np.ndarray,
    num_clusters: int,
    *,
    rows: np.ndarray | None = None,
    settings: KMeansSettings | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Clusters pairs by paired k-means.

    Args:
        queries (`np.ndarray` of shape `(num_pairs, dim)`):
            Surrogate vectors of the queries. They may be memory-mapped and in half precision.
        documents (`np.ndarray` of shape `(num_pairs, dim)`):
            Surrogate vectors of the documents.
        num_clusters (`int`):
            Number of clusters to train. Empty clusters are dropped from the result.
        rows (`np.ndarray` of shape `(num_pairs,)`, *optional*):
            The pairs to cluster, for example of one domain. Only a sample and one block of them are in memory.
        settings (`KMeansSettings`, *optional*):
            How to cluster.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Cluster of each pair, of shape `(num_pairs,)`, and centroids of shape
        `(num_found, 2 * dim)`.
    """
    settings = settings or KMeansSettings()
    rows = np.arange(len(queries)) if rows is None else rows
    num_pairs = len(rows)
    if not 1 <= num_clusters <= num_pairs:
        raise ValueError(
            f"`num_clusters` must be between 1 and the number of pairs, {num_pairs}, got {num_clusters}. Use larger "
            "clusters or more pairs."
        )
    sample = _sample(rows, max(settings.max_training_pairs, _MIN_PAIRS_PER_CLUSTER * num_clusters), settings.seed)
    training_rows = pair_rows(queries[sample], documents[sample], spherical=settings.spherical)
    kmeans = _train(training_rows, num_clusters, settings)
    del training_rows
    cluster_ids = np.empty(num_pairs, dtype=np.int32)
    for start in range(0, num_pairs, _BLOCK_SIZE):
        block = rows[start : start + _BLOCK_SIZE]
        block_rows = _rows(documents[block], queries[block], spherical=settings.spherical)
        cluster_ids[start : start + len(block)] = kmeans.index.search(block_rows, 1)[1][:, 0]
    found, found_ids = np.unique(cluster_ids, return_inverse=True)
    return found_ids.astype(np.int32), kmeans.centroids[found]


def pair_rows(queries: np.ndarray, documents: np.ndarray, *, spherical: bool = False) -> np.ndarray:
    """
    Returns both concatenations of each pair, `d⊕q` first.

    Returns:
        `np.ndarray` of shape `(2 * num_pairs, 2 * dim)`: The rows that paired k-means runs on, in float32.
    """
    num_pairs, dim = queries.shape
    rows = np.empty((2 * num_pairs, 2 * dim), dtype=np.float32)
    rows[:num_pairs, :dim] = rows[num_pairs:, dim:] = documents
    rows[:num_pairs, dim:] = rows[num_pairs:, :dim] = queries
    if spherical:
        faiss.normalize_L2(rows)
    return rows


def _train(rows: np.ndarray, num_clusters: int, settings: KMeansSettings) -> faiss.Kmeans:
    num_spread = settings.num_starts // 2
    kmeans = _train_starts(
        rows, num_clusters, settings, settings.num_starts - num_spread, faiss.ClusteringInitMethod_RANDOM
    )
    if num_spread:
        spread = _train_starts(rows, num_clusters, settings, num_spread, faiss.ClusteringInitMethod_AFK_MC2)
        # The objective is a sum of inner products or of squared distances.
        if (spread.obj[-1] > kmeans.obj[-1]) == settings.spherical:
            return spread
    return kmeans


def _train_starts(
    rows: np.ndarray, num_clusters: int, settings: KMeansSettings, num_starts: int, init_method: int
) -> faiss.Kmeans:
    kmeans = faiss.Kmeans(
        rows.shape[1],
        num_clusters,
        niter=settings.num_iterations,
        nredo=num_starts,
        spherical=settings.spherical,
        seed=settings.seed,
        init_method=init_method,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),  # otherwise FAISS trains on its own sample
        gpu=_num_gpus() > 0,
    )
    kmeans.train(rows)
    return kmeans


def _sample(rows: np.ndarray, size: int, seed: int) -> np.ndarray:
    if len(rows) <= size:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, size, replace=False))


def _rows(left: np.ndarray, right: np.ndarray, *, spherical: bool) -> np.ndarray:
    rows = np.concatenate([left, right], axis=1, dtype=np.float32)
    if spherical:
        faiss.normalize_L2(rows)
    return rows


def _num_gpus() -> int:
    return faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0


__all__ = ["KMeansSettings", "cluster_pairs", "pair_rows"]
