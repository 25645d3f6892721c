"""What a batch plan will cost, from a sample of the data: disk, memory and hours."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from datasets import Dataset

from ..data import check_pairs
from .clustering import KMeansSettings, num_multiplications, num_training_pairs
from .preparation import DEFAULT_CLUSTER_SIZE, number_domains, wanted_clusters
from .surrogates import Surrogate, TfidfSurrogate


_NUM_SAMPLES = 256
_BYTES_PER_PAIR = 3 * 8 + 4 + 4  # two hashes and the hash of both, domain, cluster


@dataclass(frozen=True)
class PlanCosts:
    """
    Costs of a batch plan.

    Args:
        num_pairs (`int`):
            Number of pairs.
        num_clusters (`int`):
            Number of clusters.
        disk (`float`):
            Bytes of the plan.
        memory (`float`):
            Peak memory of the main process in bytes, beside the surrogate.
        encoding_hours (`float`):
            Hours to encode all texts on one process. Several processes share the texts.
        clustering_hours (`float`):
            Hours to cluster, on this machine.
    """

    num_pairs: int
    num_clusters: int
    disk: float
    memory: float
    encoding_hours: float
    clustering_hours: float


def estimate_costs(
    dataset: Dataset,
    *,
    surrogate: Surrogate | None = None,
    filter_surrogate: Surrogate | None = None,
    cluster_size: int = DEFAULT_CLUSTER_SIZE,
    clustering: KMeansSettings | None = None,
    dtype: str = "float16",
) -> PlanCosts:
    """
    Estimates what [`prepare_batch_plan`] will cost with the same arguments. Writes nothing.

    Times are measured on a sample of the pairs. Hashing and statistics take little beside them and are left out.
    """
    check_pairs(dataset)
    surrogate = TfidfSurrogate() if surrogate is None else surrogate
    clustering = clustering or KMeansSettings()
    surrogates = [surrogate] if filter_surrogate is None else [surrogate, filter_surrogate]
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), _NUM_SAMPLES)).astype(np.int64)
    sample = dataset.select(rows)[:]
    negatives = [text for row in sample.get("negatives", []) for text in row]
    scale = len(dataset) / len(rows)
    seconds, disk = 0.0, float(_BYTES_PER_PAIR * len(dataset) + 8 * len(negatives) * scale)
    for each in surrogates:
        with_negatives = negatives if each is surrogates[-1] else []  # only the filter reads them
        seconds += scale * _seconds_to_encode(each, sample["query"], [*sample["document"], *with_negatives])
        disk += scale * (2 * len(rows) + len(with_negatives)) * each.dim * np.dtype(dtype).itemsize
    width = 2 * surrogate.dim
    sizes = np.bincount(number_domains(dataset)[1])
    counts = [wanted_clusters(size, cluster_size) for size in sizes]
    domains = list(zip(sizes.tolist(), counts, strict=True))
    disk += 4 * width * sum(counts)
    # The rows of paired k-means, which FAISS may copy once.
    training = max(num_training_pairs(size, count, clustering) for size, count in domains)
    memory = _BYTES_PER_PAIR * len(dataset) + 2 * 2 * 4 * width * training
    work = sum(num_multiplications(size, count, width, clustering) for size, count in domains)
    return PlanCosts(
        len(dataset), sum(counts), disk, memory, seconds / 3600, work / _multiplications_per_second(width) / 3600
    )


def _seconds_to_encode(surrogate: Surrogate, queries: Sequence[str], documents: Sequence[str]) -> float:
    if surrogate.num_fitting_texts:
        surrogate.fit([*queries, *documents])
    surrogate.encode(list(queries[:8]), "query")  # warms up
    start = time.perf_counter()
    surrogate.encode(list(queries), "query")
    surrogate.encode(list(documents), "document")
    return time.perf_counter() - start


def _multiplications_per_second(width: int) -> float:
    """Measures the speed of what takes nearly all of the time in k-means."""
    vectors = np.random.default_rng(0).normal(size=(4096, width)).astype(np.float32)
    start = time.perf_counter()
    faiss.knn(vectors, vectors[:1024], 1)
    return len(vectors) * 1024 * width / (time.perf_counter() - start)


__all__ = ["PlanCosts", "estimate_costs"]
