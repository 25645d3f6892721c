"""
Paired k-means: clusters pairs so that each query is close to the documents of the other pairs.

Two pairs are close if each query is close to the other pair's document. With surrogate vectors `q` and `d` this is
Euclidean k-means over both concatenations of every pair:

1. The rows `d⊕q` and `q⊕d` of all pairs, or of a sample if there are many, train FAISS k-means from several starts.
2. Half of the starts sample the first centroids at random, the others spread them (AFK-MC²). Each kind finds clusters
   that the other misses. The start with the best objective wins.
3. A pair belongs to the cluster of its row `d⊕q`.

Many clusters are trained in two levels: one start of a few iterations makes about the square root of their number of
coarse clusters, and each of these is clustered on its own, from spread centroids. A pair is then compared with the
clusters of the nearest coarse ones. Time grows by the power 1.5 of the number of pairs, not by its square.
"""

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from ..data import check_counts, check_seed


_BLOCK_SIZE = 65_536
_MIN_PAIRS_PER_CLUSTER = 20  # the sample is never smaller
# From here on in two levels. docs/scaling.md has the measurements.
_MIN_CLUSTERS_OF_TWO_LEVELS = 400
_ITERATIONS_OF_TWO_LEVELS = 20
_SPREAD = faiss.ClusteringInitMethod_AFK_MC2
_NUM_PROBES = 16  # coarse clusters whose clusters a pair is compared with


@dataclass(frozen=True)
class KMeansSettings:
    """
    Settings of [`cluster_pairs`]. The iterations are the paper's; its three random starts are half of ours.

    Args:
        num_iterations (`int`, *optional*, defaults to `100`):
            Iterations of each start, at most 20 in two levels.
        num_starts (`int`, *optional*, defaults to `6`):
            Number of starts, of which the best is kept. Half of them are random (one more if the number is odd), the
            others spread the first centroids. Two levels have one start.
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
    sample = _sample(rows, num_training_pairs(num_pairs, num_clusters, settings), settings.seed)
    training_rows = pair_rows(queries[sample], documents[sample], spherical=settings.spherical)
    train = _train if num_clusters < _MIN_CLUSTERS_OF_TWO_LEVELS else _train_in_two_levels
    index, centroids = train(training_rows, num_clusters, settings)
    del training_rows
    cluster_ids, sizes = np.empty(num_pairs, dtype=np.int32), np.zeros(len(centroids), dtype=np.int64)
    for start in range(0, num_pairs, _BLOCK_SIZE):
        block = rows[start : start + _BLOCK_SIZE]
        block_rows = _rows(documents[block], queries[block], spherical=settings.spherical)
        block_ids = index.search(block_rows, 1)[1][:, 0]
        cluster_ids[start : start + len(block)] = block_ids
        sizes += np.bincount(block_ids, minlength=len(centroids))
    new_ids = np.cumsum(sizes > 0, dtype=np.int32) - 1  # without those that are empty
    return new_ids[cluster_ids], centroids[sizes > 0]


def num_training_pairs(num_pairs: int, num_clusters: int, settings: KMeansSettings) -> int:
    """Number of pairs that k-means is trained on."""
    return min(num_pairs, max(settings.max_training_pairs, _MIN_PAIRS_PER_CLUSTER * num_clusters))


def num_multiplications(num_pairs: int, num_clusters: int, width: int, settings: KMeansSettings) -> float:
    """Number of multiplications of [`cluster_pairs`] for rows of a width, nearly all of its time."""
    rows = 2 * num_training_pairs(num_pairs, num_clusters, settings)
    if num_clusters < _MIN_CLUSTERS_OF_TWO_LEVELS:
        return float(width * num_clusters * (rows * settings.num_iterations * settings.num_starts + num_pairs))
    num_coarse = num_clusters**0.5
    num_iterations = min(settings.num_iterations, _ITERATIONS_OF_TWO_LEVELS)
    return width * num_coarse * (rows * (num_iterations + 1) + num_pairs * (1 + _NUM_PROBES))


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


def _train(rows: np.ndarray, num_clusters: int, settings: KMeansSettings) -> tuple[faiss.Index, np.ndarray]:
    """Returns an index of the centroids, and the centroids."""
    num_spread = settings.num_starts // 2
    options = {"niter": settings.num_iterations, "max_points_per_centroid": len(rows)}  # FAISS samples otherwise
    num_random = settings.num_starts - num_spread
    kmeans = _kmeans(rows, num_clusters, settings, nredo=num_random, **options)
    if num_spread:
        spread = _kmeans(rows, num_clusters, settings, nredo=num_spread, init_method=_SPREAD, **options)
        # The objective is a sum of inner products or of squared distances.
        if (spread.obj[-1] > kmeans.obj[-1]) == settings.spherical:
            kmeans = spread
    return kmeans.index, kmeans.centroids


def _train_in_two_levels(
    rows: np.ndarray, num_clusters: int, settings: KMeansSettings
) -> tuple[faiss.Index, np.ndarray]:
    """
    As [`_train`], for many clusters.

    `faiss.contrib.clustering.two_level_clustering` does the same, but raises an error where a coarse cluster is so
    small that it would be split into none (FAISS 1.15).
    """
    num_iterations = min(settings.num_iterations, _ITERATIONS_OF_TWO_LEVELS)
    coarse = _kmeans(rows, round(num_clusters**0.5), settings, niter=num_iterations)
    coarse_ids = np.concatenate(
        [coarse.index.search(rows[start : start + _BLOCK_SIZE], 1)[1] for start in range(0, len(rows), _BLOCK_SIZE)]
    )[:, 0]
    order = np.argsort(coarse_ids, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(coarse_ids, minlength=len(coarse.centroids)))[:-1])
    sizes = [max(1, round(num_clusters * len(part) / len(rows))) for part in parts]
    centroids = np.concatenate(
        [
            _kmeans(rows[part], size, settings, niter=num_iterations, init_method=_SPREAD).centroids
            for part, size in zip(parts, sizes, strict=True)
            if len(part)
        ]
    )
    metric = faiss.METRIC_INNER_PRODUCT if settings.spherical else faiss.METRIC_L2
    if _num_gpus():
        index = faiss.index_cpu_to_all_gpus(faiss.IndexFlat(rows.shape[1], metric))
    else:
        quantizer = faiss.IndexFlat(rows.shape[1], metric)
        quantizer.add(coarse.centroids)
        index = faiss.IndexIVFFlat(quantizer, rows.shape[1], len(coarse.centroids), metric)
        index.nprobe, index.is_trained = _NUM_PROBES, True
    index.add(centroids)
    return index, centroids


def _kmeans(rows: np.ndarray, num_clusters: int, settings: KMeansSettings, **options: Any) -> faiss.Kmeans:
    kmeans = faiss.Kmeans(
        rows.shape[1],
        num_clusters,
        spherical=settings.spherical,
        seed=settings.seed,
        min_points_per_centroid=1,
        gpu=_num_gpus() > 0,
        **options,
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
