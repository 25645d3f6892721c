"""
Encodes a corpus in Parquet files on the nodes of a Ray cluster, which share a file system.

Ray only schedules: the driver fixes the context, and actors on all nodes take one file after the other and write its
vectors. Everything else is as in `encoding.py`. If a node dies, Ray gives its files to another one. If the driver
dies, the same command resumes.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from .data import Corpus, ParquetCorpus, check_counts, check_seed
from .encoding import (
    ENCODED_CORPUS,
    EncodedCorpus,
    ShardResult,
    begin,
    encode_shard,
    finish,
    model_of,
    refuse_failures,
)


def encode_on_ray(
    load_model: Callable[[], SentenceTransformer],
    documents: Corpus | ParquetCorpus,
    folder: str | os.PathLike,
    *,
    address: str,
    batch_size: int = 32,
    shard_size: int = 1024,
    seed: int = 0,
) -> EncodedCorpus:
    """
    Encodes a corpus on a Ray cluster, or resumes an interrupted run.

    Args:
        load_model (`Callable`):
            Loads the model, in the driver and in each actor.
        documents (`str` or `os.PathLike`):
            Path of a Parquet file or of a folder of them, on a disk that all nodes share.
        folder (`str` or `os.PathLike`):
            Folder to write, on the same disk.
        address (`str`):
            Address of the cluster, `"auto"` for the one that runs on this machine, or `"local"` to start one here.
        batch_size, shard_size, seed (`int`, *optional*):
            As for [`encode_corpus`].

    Returns:
        `EncodedCorpus`: The corpus with its vectors.
    """
    check_counts(batch_size=batch_size, shard_size=shard_size)
    check_seed(seed)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray.data
    except ImportError as error:
        raise ImportError("Encoding on a cluster needs Ray: `pip install 'cde-hf[ray]'`.") from error
    corpus = documents if isinstance(documents, ParquetCorpus) else ParquetCorpus.open(documents)
    if corpus is None:
        raise ValueError(
            f"A cluster encodes Parquet files, but the corpus is `{documents}`. Write it as Parquet files into a "
            "folder that all nodes share."
        )
    folder = Path(folder).resolve()
    with ENCODED_CORPUS.locked(folder):
        begin(load_model(), corpus, folder, shard_size=shard_size, seed=seed)
        encoded = EncodedCorpus(folder, ENCODED_CORPUS.read_manifest(folder))
        left = [number for number, path in enumerate(encoded.paths) if not path.exists()]
        results = []
        if left:
            with ray.init(address=address):
                results = _run(ray, _ShardEncoder, (load_model, corpus, folder, batch_size), left)
        finish(encoded, results)
    refuse_failures(results)
    return EncodedCorpus.load(folder)


class _ShardEncoder:
    """An actor, which loads the model once."""

    def __init__(
        self, load_model: Callable[[], SentenceTransformer], corpus: ParquetCorpus, folder: Path, batch_size: int
    ):
        self.encoded = EncodedCorpus(folder, ENCODED_CORPUS.read_manifest(folder))
        self.model = model_of(load_model(), self.encoded)
        self.corpus, self.batch_size = corpus, batch_size

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        bar = tqdm(disable=True)
        result = encode_shard(self.model, self.corpus, self.encoded, item["item"], self.batch_size, bar)
        return {"result": json.dumps(asdict(result))}


def _run(ray: Any, actor: type, arguments: tuple[Any, ...], numbers: list[int]) -> list[ShardResult]:
    """Gives the shards to one actor for each GPU of the cluster or, if there is none, for each CPU."""
    resources = ray.cluster_resources()
    kind = "num_gpus" if resources.get("GPU") else "num_cpus"
    size = min(len(numbers), int(resources.get("GPU") or resources["CPU"]))
    rows = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map(
        actor,
        fn_constructor_args=arguments,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=size),
        scheduling_strategy="SPREAD",
        **{kind: 1},
    )
    # By default, Ray ends a run in which no file is finished for half an hour.
    rows.context.execution_no_progress_timeout_s = -1
    results = tqdm(rows.iter_rows(), "Encode files", len(numbers), unit="file")
    return [ShardResult(**json.loads(row["result"])) for row in results]


__all__ = ["encode_on_ray"]
