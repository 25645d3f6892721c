"""Measures how hard the batches of a plan are, as the paper does, for its manifest and for inspection."""

from collections import defaultdict
from itertools import islice
from typing import Any

import numpy as np

from .batch_plan import BatchPlan
from .false_negatives import FalseNegativeFilter, surrogate_scores
from .sampler import ClusteredBatchSampler, Grouping


BATCH_SIZES = (16, 64, 256, 1024)
_NUM_BATCHES = 50


def plan_statistics(plan: BatchPlan) -> dict[str, Any]:
    """Returns the sizes of the clusters, and hardness and filtered share of batches of several sizes."""
    sizes = np.bincount(plan.cluster_ids, minlength=len(plan.centroids))
    quantiles = np.quantile(sizes, [0, 0.25, 0.5, 0.75, 1]).round().astype(int).tolist()
    pairs = np.bincount(plan.domain_ids, minlength=len(plan.domains))
    clusters = np.bincount(plan.cluster_domains, minlength=len(plan.domains))
    return {
        "num_clusters": len(plan.centroids),
        "cluster_size_quantiles": quantiles,
        "domains": {
            name: {"num_pairs": int(num_pairs), "num_clusters": int(num_clusters)}
            for name, num_pairs, num_clusters in zip(plan.domains, pairs, clusters, strict=True)
        },
        "batches": [
            batch_statistics(plan, batch_size, grouping)
            for batch_size in BATCH_SIZES
            for grouping in ("cluster", "domain", "random")
            if batch_size <= pairs.max()
        ],
    }


def batch_statistics(plan: BatchPlan, batch_size: int, grouping: Grouping = "cluster") -> dict[str, Any]:
    """
    Measures the hardness of batches on a sample of fifty.

    The hardness of a batch is the mean surrogate score of its queries with the documents of the other pairs. The
    filtered share is the share of these documents that the filter removes with a margin of 0.

    Args:
        plan (`BatchPlan`):
            The plan.
        batch_size (`int`):
            Pairs in a batch.
        grouping (`str`, *optional*, defaults to `"cluster"`):
            As for [`ClusteredBatchSampler`].

    Returns:
        `dict`: `batch_size`, `grouping`, `hardness`, `filtered_share`, and `filtered_share_of_domains` for each domain
        in the sample.
    """
    sampler = ClusteredBatchSampler(plan, batch_size, grouping=grouping, cluster_order="random")
    false_negatives = FalseNegativeFilter(plan)
    hardness, filtered = [], defaultdict(list)
    is_negative = ~np.eye(batch_size, dtype=bool)
    for rows in islice(sampler, _NUM_BATCHES):
        scores, is_false = false_negatives(rows)
        hardness.append(scores[:, :batch_size][is_negative].mean())
        filtered[plan.domains[plan.domain_ids[rows[0]]]].append(is_false[:, :batch_size][is_negative].mean())
    shares = [share for domain_shares in filtered.values() for share in domain_shares]
    return {
        "batch_size": batch_size,
        "grouping": grouping,
        "hardness": round(float(np.mean(hardness)), 4),
        "filtered_share": round(float(np.mean(shares)), 4),
        "filtered_share_of_domains": {name: round(float(np.mean(part)), 4) for name, part in sorted(filtered.items())},
    }


def hardness_by_cluster_size(plan: BatchPlan) -> list[dict[str, Any]]:
    """
    Measures the hardness of batches by the size of the cluster that most of their pairs come from.

    Returns:
        `list[dict]`: For each batch size and each quarter of the batches, the `smallest` and
        `largest` cluster and the mean `hardness`.
    """
    sizes = np.bincount(plan.cluster_ids, minlength=len(plan.centroids))
    entries = []
    for batch_size in BATCH_SIZES:
        if batch_size > np.bincount(plan.domain_ids).max():
            continue
        sampler = ClusteredBatchSampler(plan, batch_size, cluster_order="random")
        measured = []
        for batch in islice(sampler, 4 * _NUM_BATCHES):
            rows = np.asarray(batch)
            scores = surrogate_scores(plan, rows)[:, :batch_size]
            cluster = np.bincount(plan.cluster_ids[rows]).argmax()
            measured.append((sizes[cluster], scores[~np.eye(batch_size, dtype=bool)].mean()))
        for part in np.array_split(np.array(sorted(measured)), 4):
            if len(part):
                entries.append(
                    {
                        "batch_size": batch_size,
                        "smallest": int(part[0, 0]),
                        "largest": int(part[-1, 0]),
                        "hardness": float(part[:, 1].mean()),
                    }
                )
    return entries


__all__ = ["BATCH_SIZES", "batch_statistics", "hardness_by_cluster_size", "plan_statistics"]
