"""
Makes a batch plan in steps that can be interrupted at any time:

1. Hash the texts, shard by shard, on all processes, and number the domains.
2. Encode queries, documents and hard negatives with the surrogates, shard by shard, on all processes.
3. Cluster the pairs of each domain, and number its clusters so that neighbours have neighbouring numbers.
4. Measure how hard the batches are, write the manifest, and move the files to their place.

Everything is written to a hidden folder inside of the folder of the plan. A second run with the same data and settings
resumes after the last complete shard or domain. A run with other data or settings starts over. No process holds the
texts, hashes or vectors of all pairs in memory.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data import check_pairs
from ..files import atomic_file, write_text
from ..messages import count_of
from ..processes import process_state
from .batch_plan import BATCH_PLAN, BatchPlan, hash_arrays, hash_negatives, hash_pairs, pair_keys
from .clustering import KMeansSettings, cluster_pairs
from .inspection import collect_samples
from .packing import group_rows, nearest_neighbour_order
from .statistics import plan_statistics
from .surrogates import Side, Surrogate, TfidfSurrogate, open_rows, write_rows, write_vectors


logger = logging.get_logger(__name__)

DEFAULT_CLUSTER_SIZE = 256

_WORK = ".cde-hf.unfinished"
_IDENTITY = "identity.json"
_HASHES = "text_hashes.npy"
_HASHED_AT_ONCE = 1 << 16


def prepare_batch_plan(
    dataset: Dataset,
    folder: str | Path,
    *,
    surrogate: Surrogate | None = None,
    filter_surrogate: Surrogate | None = None,
    cluster_size: int = DEFAULT_CLUSTER_SIZE,
    clustering: KMeansSettings | None = None,
    dtype: str = "float16",
) -> BatchPlan:
    """
    Makes the batch plan of a data set, or resumes one that was interrupted.

    Args:
        dataset (`datasets.Dataset`):
            Pairs: `query`, `document`, optional `negatives` and `domain`.
        folder (`str` or `Path`):
            Folder to write.
        surrogate (`Surrogate`, *optional*):
            Model whose vectors are clustered. Defaults to [`TfidfSurrogate`], which needs no weights.
        filter_surrogate (`Surrogate`, *optional*):
            Model whose vectors filter false negatives. Defaults to `surrogate`.
        cluster_size (`int`, *optional*, defaults to `256`):
            Target number of pairs in a cluster.
        clustering (`KMeansSettings`, *optional*):
            Settings of paired k-means.
        dtype (`str`, *optional*, defaults to `"float16"`):
            Precision of the vectors on disk, `"float16"` or `"float32"`.

    Returns:
        `BatchPlan`: The plan.
    """
    check_pairs(dataset)
    if cluster_size < 2:
        raise ValueError(f"`cluster_size` must be at least 2, got {cluster_size}.")
    if dtype not in ("float16", "float32"):
        raise ValueError(f"`dtype` must be `float16` or `float32`, got {dtype!r}.")
    surrogate = TfidfSurrogate() if surrogate is None else surrogate
    clustering = clustering or KMeansSettings()
    folder = Path(folder)
    state = process_state()
    work = folder / _WORK
    with BATCH_PLAN.locked(folder) if state.is_main_process else nullcontext():
        if state.is_main_process:
            work.mkdir(exist_ok=True)
        state.wait_for_everyone()
        _hash_texts(dataset, work / _HASHES)
        if state.is_main_process:
            settings = {
                "surrogate": surrogate.description,
                "filter_surrogate": filter_surrogate.description if filter_surrogate is not None else None,
                "cluster_size": cluster_size,
                "clustering": {"kind": type(clustering).__name__, **asdict(clustering)},
                "dtype": dtype,
            }
            _begin(dataset, folder, settings)
        state.wait_for_everyone()
        is_published, is_complete = BATCH_PLAN.is_in(folder), BATCH_PLAN.is_in(work)
        state.wait_for_everyone()  # all processes check before the main process continues
        if not is_published:
            if not is_complete:
                logger.info(f"Encoding on {count_of(state.num_processes, 'process')}.")
                _encode_all(dataset, work, surrogate, filter_surrogate, dtype)
            if state.is_main_process:
                if not is_complete:
                    _cluster_domains(work, cluster_size, clustering)
                    _write_manifest(work, dataset)
                BATCH_PLAN.publish(work, folder)
    state.wait_for_everyone()
    return BatchPlan.load(folder)


def _hash_texts(dataset: Dataset, path: Path) -> None:
    """Hashes all texts again, even if a run is resumed: they may have changed."""
    state = process_state()
    num_pairs = len(dataset)
    with state.main_process_first():
        hashes = open_rows(path, (num_pairs, 2), "uint64")
    starts = range(0, num_pairs, _HASHED_AT_ONCE)[state.process_index :: state.num_processes]
    is_shown = state.is_main_process and num_pairs > _HASHED_AT_ONCE
    for start in tqdm(starts, desc="Hash texts", unit="shard", disable=not is_shown):
        rows = range(start, min(start + _HASHED_AT_ONCE, num_pairs))
        write_rows(path, hashes, start, hash_pairs(dataset.select(rows)))
    state.wait_for_everyone()


def _begin(dataset: Dataset, folder: Path, settings: dict[str, Any]) -> None:
    """Checks that a plan in the folder is of the same data and settings, or prepares the folder to work in."""
    work = folder / _WORK
    domains, domain_ids = number_domains(dataset)
    arrays = {"domain_ids": domain_ids, "text_hashes": np.load(work / _HASHES, mmap_mode="r")}
    if "negatives" in dataset.column_names:
        arrays["negative_offsets"], arrays["negative_hashes"] = hash_negatives(dataset)
    identity = {
        "data_fingerprint": hash_arrays(arrays.values(), domains),
        "num_pairs": len(dataset),
        "domains": domains,
        "has_negatives": "negatives" in dataset.column_names,
        **settings,
    }
    hashes = arrays.pop("text_hashes")  # they are in the folder
    if BATCH_PLAN.is_in(folder):
        shutil.rmtree(work)
        _check_plan(BatchPlan.load(folder, verify=True), identity)
        return
    _resume_or_start_over(work, identity)
    arrays["answers"] = pair_keys(*hashes.T)
    arrays["answers"].sort()
    for name, array in arrays.items():
        _save(work / f"{name}.npy", array)


def _check_plan(plan: BatchPlan, identity: dict[str, Any]) -> None:
    for name, wanted in identity.items():
        found = plan.manifest.get(name)
        if found != json.loads(json.dumps(wanted)):
            raise ValueError(
                f"`{plan.folder}` already holds a batch plan with another `{name}`: {found}, not {wanted}. Remove it "
                "or choose another folder."
            )
    logger.info(f"`{plan.folder}` already holds this batch plan.")


def _resume_or_start_over(work: Path, identity: dict[str, Any]) -> None:
    """Deletes everything except the hashes if the folder was started with other data or settings."""
    text, path = json.dumps(identity, indent=2), work / _IDENTITY
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            logger.info(f"Resuming the unfinished plan `{work}`.")
            return
        logger.warning(f"`{work}` was started with other data or settings: starting over.")
        path.unlink()  # first, so that nobody resumes a folder that is half empty
    for other in work.iterdir():
        if other.name != _HASHES:
            other.unlink()
    write_text(path, text)


def number_domains(dataset: Dataset) -> tuple[list[str], np.ndarray]:
    """Returns the names of the domains, and the number of each pair's domain."""
    if "domain" not in dataset.column_names:
        return ["all"], np.zeros(len(dataset), dtype=np.int32)
    domains = sorted(dataset.unique("domain"))
    numbers = {domain: number for number, domain in enumerate(domains)}
    names = dataset.select_columns(["domain"])
    ids = np.empty(len(dataset), dtype=np.int32)
    for start in range(0, len(dataset), 100_000):
        block = names[start : start + 100_000]["domain"]
        ids[start : start + len(block)] = [numbers[domain] for domain in block]
    return domains, ids


def _encode_all(
    dataset: Dataset, work: Path, surrogate: Surrogate, filter_surrogate: Surrogate | None, dtype: str
) -> None:
    has_negatives = "negatives" in dataset.column_names
    # Only the filter reads hard negatives.
    is_filter = filter_surrogate is None
    _encode(dataset, surrogate, work, name="clustering", dtype=dtype, with_negatives=has_negatives and is_filter)
    if filter_surrogate is not None:
        _encode(dataset, filter_surrogate, work, name="filter", dtype=dtype, with_negatives=has_negatives)


def _encode(
    dataset: Dataset, surrogate: Surrogate, work: Path, *, name: str, dtype: str, with_negatives: bool
) -> None:
    if surrogate.num_fitting_texts:
        surrogate.fit(_sample_texts(dataset, surrogate.num_fitting_texts))
    one_each = range(len(dataset) + 1)
    sides: dict[Side, str] = {"query": "queries", "document": "documents"}
    for side, file_name in sides.items():
        write_vectors(
            surrogate,
            _text_reader(dataset, side),
            work / f"{name}_{file_name}.npy",
            offsets=one_each,
            side=side,
            dtype=dtype,
        )
        if process_state().is_main_process:  # the other processes may find the folder renamed
            _warn_of_zeros(work / f"{name}_{file_name}.npy")
    if with_negatives:
        negatives = dataset.select_columns(["negatives"])
        write_vectors(
            surrogate,
            lambda start, stop: [text for row in negatives[start:stop]["negatives"] for text in row],
            work / f"{name}_negatives.npy",
            offsets=np.load(work / "negative_offsets.npy", mmap_mode="r"),
            side="document",
            dtype=dtype,
        )


def _text_reader(dataset: Dataset, column: str) -> Callable[[int, int], list[str]]:
    texts = dataset.select_columns([column])
    return lambda start, stop: texts[start:stop][column]


def _warn_of_zeros(path: Path) -> None:
    vectors = np.load(path, mmap_mode="r")
    sample = vectors[:: max(1, len(vectors) // 10_000)]
    share = float((sample == 0).all(axis=1).mean())
    if share > 0.01:
        logger.warning(
            f"{share:.0%} of {path.stem} are zero: the surrogate has none of their words. They are clustered at "
            "random and not filtered. Use a sentence-transformers model as surrogate."
        )


def _sample_texts(dataset: Dataset, num_texts: int) -> list[str]:
    num_rows = min(len(dataset), num_texts // 2)
    rows = np.sort(np.random.default_rng(0).choice(len(dataset), num_rows, replace=False))
    sample = dataset.select(rows).select_columns(["query", "document"])[:]
    return [*sample["query"], *sample["document"]]


def _cluster_domains(work: Path, cluster_size: int, clustering: KMeansSettings) -> None:
    domain_ids = np.load(work / "domain_ids.npy", mmap_mode="r")
    queries = np.load(work / "clustering_queries.npy", mmap_mode="r")
    documents = np.load(work / "clustering_documents.npy", mmap_mode="r")
    order, starts = group_rows(domain_ids, int(domain_ids.max()) + 1)
    cluster_ids = np.empty(len(domain_ids), dtype=np.int32)
    centroids: list[np.ndarray] = []
    num_clusters = 0
    rows_of_domains = np.split(order, starts[1:-1])
    for domain, rows in enumerate(tqdm(rows_of_domains, desc="Cluster domains", unit="domain")):
        ids_path = work / f"domain_clusters_{domain}_ids.npy"
        centroids_path = work / f"domain_clusters_{domain}_centroids.npy"
        if not ids_path.exists():
            wanted = wanted_clusters(len(rows), cluster_size)
            ids, domain_centroids = cluster_pairs(queries, documents, wanted, rows=rows, settings=clustering)
            tour = nearest_neighbour_order(domain_centroids)
            _save(centroids_path, domain_centroids[tour])
            _save(ids_path, np.argsort(tour)[ids].astype(np.int32))  # last, so that both files exist if this one does
        cluster_ids[rows] = np.load(ids_path) + num_clusters
        centroids.append(np.load(centroids_path))
        num_clusters += len(centroids[-1])
    cluster_domains = np.repeat(np.arange(len(centroids), dtype=np.int32), [len(part) for part in centroids])
    _save(work / "cluster_ids.npy", cluster_ids)
    _save(work / "cluster_domains.npy", cluster_domains)
    _save(work / "centroids.npy", np.concatenate(centroids))


def wanted_clusters(num_pairs: int, cluster_size: int) -> int:
    """Number of clusters of a domain."""
    return max(1, round(num_pairs / cluster_size))


def _write_manifest(work: Path, dataset: Dataset) -> None:
    facts = json.loads((work / _IDENTITY).read_text(encoding="utf-8"))
    plan = BatchPlan(work, facts)
    facts["statistics"] = plan_statistics(plan)
    write_text(work / "samples.json", json.dumps(collect_samples(plan, dataset), indent=2, ensure_ascii=False))
    names = [path.name for path in work.glob("*.npy") if not path.name.startswith("domain_clusters")]
    BATCH_PLAN.write_manifest(work, facts, names=["samples.json", *names])


def _save(path: Path, array: np.ndarray) -> None:
    with atomic_file(path) as new_path, new_path.open("wb") as file:
        np.save(file, array)


__all__ = ["DEFAULT_CLUSTER_SIZE", "number_domains", "prepare_batch_plan", "wanted_clusters"]
