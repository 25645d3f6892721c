"""
How the cost of a batch plan grows with the number of pairs, and k-means in one level and in two, on synthetic pairs.

Each plan is made in a process of its own, whose peak memory counts, and so is the first batch of an epoch. Vectors
come from a surrogate that takes little time. Times are processor time: run it on one thread (`OMP_NUM_THREADS=1`).
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset
from timing import write_header, write_row

from cde_hf.batching import (
    BatchPlan,
    ClusteredBatchSampler,
    KMeansSettings,
    clustering,
    preparation,
    prepare_batch_plan,
)
from cde_hf.batching.costs import estimate_costs


NUM_TOPICS = 5_000
SETTINGS = KMeansSettings(seed=0)


class SyntheticSurrogate:
    """Vectors around the centre of a text's topic. The text is its number."""

    num_fitting_texts = 0

    def __init__(self, dim: int):
        self.dim = dim
        self.description = {"kind": "synthetic", "dim": dim}
        self._centres = np.random.default_rng(0).normal(size=(NUM_TOPICS, dim)).astype(np.float32)

    def encode(self, texts: list[str], side: str) -> np.ndarray:
        numbers = np.array(texts, dtype=np.int64)
        noise = np.random.default_rng([numbers[0], side == "query"]).normal(size=(len(numbers), self.dim))
        vectors = self._centres[numbers * 7919 % NUM_TOPICS] + 0.7 * noise.astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_pairs(path: Path, num_pairs: int) -> None:
    numbers = pa.array(np.arange(num_pairs)).cast(pa.string())
    table = pa.table({"query": numbers, "document": numbers})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)


def prepare(folder: Path, cluster_size: int, dim: int) -> tuple[float, float]:
    """Makes a plan. Returns the seconds of clustering and of everything."""
    cluster, seconds = preparation._cluster_domains, []

    def timed(*args: object) -> None:
        start = time.process_time()
        cluster(*args)
        seconds.append(time.process_time() - start)

    preparation._cluster_domains = timed
    dataset = Dataset.from_file(str(folder / "pairs.arrow"))
    start = time.process_time()
    surrogate = SyntheticSurrogate(dim)
    prepare_batch_plan(dataset, folder / "plan", surrogate=surrogate, cluster_size=cluster_size, clustering=SETTINGS)
    return seconds[0], time.process_time() - start


def first_batch(folder: Path) -> float:
    """Opens a plan as each rank does. Returns the seconds to the first batch of an epoch."""
    start = time.process_time()
    next(iter(ClusteredBatchSampler(BatchPlan.load(folder / "plan"), 1024, num_processes=8, process_index=0)))
    return time.process_time() - start


def costs(folder: Path, cluster_size: int, dim: int) -> tuple[float, float, float]:
    """What a dry run foretells: hours of clustering, bytes of memory and disk."""
    dataset = Dataset.from_file(str(folder / "pairs.arrow"))
    found = estimate_costs(dataset, surrogate=SyntheticSurrogate(dim), cluster_size=cluster_size, clustering=SETTINGS)
    return found.clustering_hours, found.memory, found.disk


def in_own_process(function: Callable, *arguments: object) -> tuple:
    """Returns the result of the function, and by how many MB the peak memory of its process exceeds its imports."""
    # Not forked: a child must not inherit the threads of FAISS.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(with_peak_memory, function, *arguments).result()


def with_peak_memory(function: Callable, *arguments: object) -> tuple:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return function(*arguments), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000


def write_growth(numbers: list[int], cluster_size: int, dim: int) -> None:
    columns = ["clustering s", "all s", "peak MB", "first batch s", "rank MB", "disk MB"]
    write_header(["pairs", "clusters", *columns, "dry run: s, MB, disk MB"])
    for num_pairs in numbers:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_pairs(folder / "pairs.arrow", num_pairs)
            (hours, memory, disk), _ = in_own_process(costs, folder, cluster_size, dim)
            (clustering_seconds, seconds), peak = in_own_process(prepare, folder, cluster_size, dim)
            batch_seconds, rank_peak = in_own_process(first_batch, folder)
            num_bytes = sum(path.stat().st_size for path in (folder / "plan").iterdir())
            write_row(
                [
                    f"{num_pairs:,}",
                    f"{len(BatchPlan.load(folder / 'plan').centroids):,}",
                    f"{clustering_seconds:.1f}",
                    f"{seconds:.1f}",
                    f"{peak:.0f}",
                    f"{batch_seconds:.2f}",
                    f"{rank_peak:.0f}",
                    f"{num_bytes / 1e6:.0f}",
                    f"{3600 * hours:.0f}, {memory / 1e6:.0f}, {disk / 1e6:.0f}",
                ]
            )


def write_levels(numbers: list[int], cluster_size: int, dim: int) -> None:
    """Compares one level with two: seconds, and the mean squared distance of a pair from its centroid."""
    write_header(["pairs", "clusters", "one level s", "two levels s", "distance, two / one"])
    surrogate = SyntheticSurrogate(dim)
    for num_pairs in numbers:
        texts = [str(number) for number in range(num_pairs)]
        queries, documents = surrogate.encode(texts, "query"), surrogate.encode(texts, "document")
        num_clusters, seconds, distances = num_pairs // cluster_size, [], []
        for least in (num_clusters + 1, 1):
            clustering._MIN_CLUSTERS_OF_TWO_LEVELS = least
            start = time.process_time()
            ids, centroids = clustering.cluster_pairs(queries, documents, num_clusters, settings=SETTINGS)
            seconds.append(time.process_time() - start)
            rows = np.concatenate([documents, queries], axis=1)
            distances.append(((rows - centroids[ids]) ** 2).sum(axis=1).mean())
        ratio = distances[1] / distances[0]
        write_row([f"{num_pairs:,}", num_clusters, f"{seconds[0]:.1f}", f"{seconds[1]:.1f}", f"{ratio:.3f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="*", default=[1_000_000, 4_000_000], help="numbers of pairs")
    parser.add_argument("--level-pairs", type=int, nargs="*", default=[], help="numbers of pairs to compare levels")
    parser.add_argument("--cluster-size", type=int, default=40, help="pairs in a cluster (default: 40)")
    parser.add_argument("--dim", type=int, default=32, help="dimension of the surrogate vectors (default: 32)")
    args = parser.parse_args()
    if args.level_pairs:
        write_levels(args.level_pairs, 100, args.dim)
    if args.pairs:
        write_growth(args.pairs, args.cluster_size, args.dim)


if __name__ == "__main__":
    main()
