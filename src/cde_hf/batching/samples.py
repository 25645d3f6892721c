"""A few clusters with their texts, and a few documents that the filter leaves out, for a person to judge."""

from typing import Any

import numpy as np
from datasets import Dataset

from .batch_plan import BatchPlan
from .false_negatives import FalseNegativeFilter


_MAX_CHARACTERS = 300


def collect_samples(
    plan: BatchPlan, dataset: Dataset, *, num_clusters: int = 12, num_pairs: int = 6, seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """
    Draws clusters and filtered negatives from a plan.

    Args:
        plan (`BatchPlan`):
            The plan.
        dataset (`datasets.Dataset`):
            The data it was made for.
        num_clusters (`int`, *optional*, defaults to `12`):
            Clusters to draw.
        num_pairs (`int`, *optional*, defaults to `6`):
            Pairs to draw of each.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draw.

    Returns:
        `dict`: Under `clusters` their domain, size and pairs of texts; under `filtered` the query, its positive, the
        document that was left out, and the scores of both.
    """
    generator = np.random.default_rng(seed)
    sizes = np.bincount(plan.cluster_ids, minlength=len(plan.centroids))
    eligible = np.flatnonzero(sizes >= 2)
    drawn = generator.choice(eligible, min(num_clusters, len(eligible)), replace=False)
    clusters, filtered = [], []
    for cluster in drawn:
        members = np.flatnonzero(plan.cluster_ids == cluster)
        rows = generator.permutation(members)[:num_pairs]
        texts = [_pair(dataset, row) for row in rows]
        domain = plan.domains[plan.cluster_domains[cluster]]
        clusters.append({"domain": domain, "size": int(sizes[cluster]), "pairs": texts})
        filtered.extend(_filtered(plan, dataset, generator.permutation(members)[:64], domain))
    return {"clusters": clusters, "filtered": filtered}


def _filtered(plan: BatchPlan, dataset: Dataset, rows: np.ndarray, domain: str) -> list[dict[str, Any]]:
    """At most two documents that are left out of a batch of one cluster."""
    scores, is_false = FalseNegativeFilter(plan)(rows)
    queries, documents = np.nonzero(is_false[:, : len(rows)])
    found = []
    for query, document in list(zip(queries, documents, strict=True))[:2]:
        positive, other = _pair(dataset, rows[query]), _pair(dataset, rows[document])
        found.append(
            {
                "domain": domain,
                **positive,
                "score": round(float(scores[query, query]), 3),
                "left_out": other["document"],
                "left_out_score": round(float(scores[query, document]), 3),
            }
        )
    return found


def _pair(dataset: Dataset, row: int) -> dict[str, str]:
    texts = dataset[int(row)]
    return {side: texts[side][:_MAX_CHARACTERS] for side in ("query", "document")}


__all__ = ["collect_samples"]
