"""
Time and memory of what happens before training, on synthetic pairs.

Measures clustering against bare FAISS, its memory, the greedy nearest-neighbour order of clusters, opening a plan, and
an epoch. Clustering and a bare `faiss.Kmeans` call on the same rows take turns. Each runs in its own process, so that
peak memory is measured separately.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import faiss
import numpy as np

from cde_hf.batching import BatchPlan, ClusteredBatchSampler, FalseNegativeFilter, KMeansSettings, cluster_pairs
from cde_hf.batching.batch_plan import FORMAT_VERSION, MANIFEST
from cde_hf.batching.clustering import pair_rows
from cde_hf.batching.packing import nearest_neighbour_order, neighbour_table


SETTINGS = KMeansSettings(num_iterations=10, num_starts=1, max_training_pairs=10**9)


def write_vectors(folder: Path, num_pairs: int, dim: int) -> None:
    """Makes unit-norm vectors around a thousand centres. The query and document of a pair are close together."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(1000, dim)).astype(np.float32)
    topics = centres[generator.integers(0, 1000, num_pairs)]
    for name in ("clustering_queries", "clustering_documents"):
        vectors = topics + generator.normal(size=(num_pairs, dim)).astype(np.float32)
        faiss.normalize_L2(vectors)
        np.save(folder / f"{name}.npy", vectors.astype(np.float16))


def cluster_with_package(folder: Path, num_clusters: int) -> float:
    queries, documents = (
        np.load(folder / f"clustering_{side}.npy", mmap_mode="r") for side in ("queries", "documents")
    )
    start = time.perf_counter()
    cluster_ids, centroids = cluster_pairs(queries, documents, num_clusters, settings=SETTINGS)
    seconds = time.perf_counter() - start
    np.save(folder / "cluster_ids.npy", cluster_ids)
    np.save(folder / "centroids.npy", centroids)
    return seconds


def cluster_with_faiss(folder: Path, num_clusters: int) -> float:
    rows = pair_rows(*(np.load(folder / f"clustering_{side}.npy", mmap_mode="r") for side in ("queries", "documents")))
    kmeans = faiss.Kmeans(rows.shape[1], num_clusters, niter=10, nredo=1, max_points_per_centroid=len(rows))
    start = time.perf_counter()
    kmeans.train(rows)
    return time.perf_counter() - start


def in_own_process(function: Callable[[Path, int], float], *arguments: object) -> tuple[float, float]:
    """Returns the seconds that the function reports, and the peak memory of its process in GiB."""
    # Not forked: a child must not inherit the threads of FAISS.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(with_peak_memory, function, *arguments).result()


def with_peak_memory(function: Callable[[Path, int], float], *arguments: object) -> tuple[float, float]:
    return function(*arguments), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def finish_plan(folder: Path, num_pairs: int) -> None:
    """The rest of a batch plan of one domain."""
    np.save(folder / "domain_ids.npy", np.zeros(num_pairs, dtype=np.int32))
    np.save(folder / "cluster_domains.npy", np.zeros(len(np.load(folder / "centroids.npy")), dtype=np.int32))
    np.save(folder / "text_hashes.npy", np.random.default_rng(0).integers(0, 2**63, (num_pairs, 2)).astype(np.uint64))
    manifest = {
        "format_version": FORMAT_VERSION,
        "num_pairs": num_pairs,
        "domains": ["all"],
        "has_negatives": False,
        "filter_surrogate": None,
        "arrays": {path.stem: list(np.load(path, mmap_mode="r").shape) for path in folder.glob("*.npy")},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))


def measure(num_pairs: int, num_clusters: int, dim: int, num_rounds: int) -> None:
    write = sys.stdout.write
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_vectors(folder, num_pairs, dim)
        ours, bare = [], []
        for _ in range(num_rounds):
            ours.append(in_own_process(cluster_with_package, folder, num_clusters))
            bare.append(in_own_process(cluster_with_faiss, folder, num_clusters))
        seconds, bare_seconds = min(ours)[0], min(bare)[0]
        doubled = 2 * num_pairs * 2 * dim * 4 / 2**30
        finish_plan(folder, num_pairs)

        start = time.perf_counter()
        sampler = ClusteredBatchSampler(BatchPlan.load(folder), 256, cluster_order="random")
        batches = list(sampler)
        epoch_seconds = time.perf_counter() - start
        false_negatives = FalseNegativeFilter(sampler.plan)
        start = time.perf_counter()
        for batch in batches[:50]:
            false_negatives(batch)
        filter_seconds = (time.perf_counter() - start) / min(50, len(batches))
        write(
            f"| {num_pairs:,} | {num_clusters:,} | {seconds:.1f} | {seconds / bare_seconds:.2f}x "
            f"| {min(memory for _, memory in ours):.2f} | {doubled:.2f} | {epoch_seconds:.2f} | "
            f"{1000 * filter_seconds:.1f} |\n"
        )
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="numbers of pairs")
    parser.add_argument("--dim", type=int, default=128, help="dimension of the surrogate vectors (default: 128)")
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds; the best one counts (default: 2)")
    parser.add_argument("--centroids", type=int, default=16_000, help="centroids to order (default: 16000)")
    args = parser.parse_args()

    write = sys.stdout.write
    write("Clustering: 10 iterations, one start, pairs / 1024 clusters but at least 16. Batches of 256.\n\n")
    write(
        "| pairs | clusters | seconds | to bare FAISS | peak GiB | doubled rows GiB | open + epoch s | filter ms |\n"
    )
    write("|---|---|---|---|---|---|---|---|\n")
    for num_pairs in args.pairs:
        measure(num_pairs, max(16, min(1024, num_pairs // 976)), args.dim, args.rounds)

    centroids = np.random.default_rng(0).normal(size=(args.centroids, 2 * args.dim)).astype(np.float32)
    start = time.perf_counter()
    neighbours = neighbour_table(centroids)
    middle = time.perf_counter()
    nearest_neighbour_order(centroids, start=0, neighbours=neighbours)
    write(
        f"\nNearest-neighbour order of {args.centroids:,} random centroids: {middle - start:.1f} s for the table of "
        f"neighbours, once; {time.perf_counter() - middle:.1f} s for the order, in each epoch.\n"
    )


if __name__ == "__main__":
    main()
