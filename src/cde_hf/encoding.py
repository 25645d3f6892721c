"""
Encodes a corpus into a folder of Parquet files, on any number of processes, and resumes after an interruption.

1. The main process fixes the context and writes it to the folder, together with the hash of the corpus and the model.
2. The corpus is split into shards. Each of `n` processes takes every n-th shard, encodes it and writes one Parquet
   file with the columns `id`, `text` and `vector`. A file gets its final name when it is complete. If the corpus is in
   Parquet files, these are the shards. They are read block by block, so memory does not grow with the corpus.
3. The main process adds the hashes of the files to the manifest.

A second run skips finished shards. It refuses a folder of another corpus or model. `accelerate launch` starts the
processes, on one machine or on several machines that share the folder. `encoding_on_ray.py` gives the shards to the
nodes of a Ray cluster instead.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from accelerate.utils import gather_object
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm
from transformers.utils import logging

from .contextual_models import find_contextual_module, get_context, with_context, with_own_context
from .data import Corpus, ParquetCorpus, check_counts, check_seed, ids_and_texts
from .files import FolderKind, atomic_file, describe, find_damage
from .messages import count_of
from .modeling import Context
from .processes import process_state
from .vectors import SentenceTransformerEmbedder, VectorOrigin, vector_origin


logger = logging.get_logger(__name__)

ENCODED_CORPUS = FolderKind(
    "encoded corpus", 4, "Run `cde-hf encode MODEL CORPUS FOLDER`, which keeps undamaged shards."
)
_CONTEXT_FILE = "context.safetensors"
_MAX_SAMPLE = 50_000  # documents of a corpus in files that a context is made of, as for other corpora


@dataclass(frozen=True, repr=False)
class EncodedCorpus:
    """
    A corpus with its vectors in a folder of Parquet files, made by [`encode_corpus`].

    Args:
        folder (`Path`):
            The folder.
        manifest (`dict`):
            Origin of the vectors, number of documents, the shards and the hash of the corpus in each.
        model (`SentenceTransformer`, *optional*):
            The model with the context of the vectors, if this process encoded the corpus.
    """

    folder: Path
    manifest: dict[str, Any]
    model: SentenceTransformer | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "EncodedCorpus":
        """Opens a folder and refuses one with missing shards."""
        encoded = cls(Path(folder), ENCODED_CORPUS.read_manifest(folder))
        missing = encoded.unfinished
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(encoded.paths)} shards of `{folder}` are missing, such as "
                f"{missing[0].name}. Encode the corpus into this folder again, which keeps the finished shards."
            )
        return encoded

    @staticmethod
    def exists(folder: str | os.PathLike) -> bool:
        """Whether a folder holds an encoded corpus, finished or not."""
        return ENCODED_CORPUS.is_in(folder)

    def __repr__(self) -> str:
        return f"EncodedCorpus({str(self.folder)!r}, {count_of(len(self), 'document')})"

    def __len__(self) -> int:
        """Number of documents."""
        return self.manifest["num_documents"]

    @property
    def origin(self) -> VectorOrigin:
        """The origin of the vectors."""
        return VectorOrigin.from_dict(self.manifest["origin"])

    @property
    def context(self) -> Context | None:
        """The context of the vectors."""
        path = self.folder / _CONTEXT_FILE
        if path.name not in self.manifest["files"]:
            return None
        ENCODED_CORPUS.check_file(path, self.manifest["files"][path.name])
        return Context.load(path)

    @property
    def paths(self) -> list[Path]:
        """The Parquet files, in the order of the corpus."""
        return [self.folder / name for name in self.manifest["shards"]]

    @property
    def unfinished(self) -> list[Path]:
        """The files that are missing, or not in the manifest yet."""
        return [path for path in self.paths if path.name not in self.manifest["files"] or not path.exists()]

    def shards(self) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
        """Ids, texts and vectors of shape `(num_documents, dim)`, block by block. Compares the hash of each file."""
        for path in self.paths:
            ENCODED_CORPUS.check_file(path, self.manifest["files"][path.name])
            file = pq.ParquetFile(path)
            for number in range(file.num_row_groups):
                table = file.read_row_group(number)
                vectors = table["vector"].combine_chunks()
                matrix = vectors.values.to_numpy(zero_copy_only=False).reshape(-1, vectors.type.list_size)
                yield table["id"].to_pylist(), table["text"].to_pylist(), matrix


@dataclass(frozen=True)
class ShardResult:
    """
    What became of a shard.

    Args:
        name (`str`):
            Name of its file.
        description (`dict`, *optional*):
            Size and hash of the file, if it was written.
        failure (`str`, *optional*):
            Otherwise, why its documents could not be encoded.
    """

    name: str
    description: dict[str, Any] | None
    failure: str | None = None


class ShardedTexts:
    """A corpus in memory, in shards of one block each. The same in Parquet files is a [`ParquetCorpus`]."""

    def __init__(self, documents: Corpus, shard_size: int):
        self.ids, self.texts = ids_and_texts(documents)
        self._rows = [slice(start, start + shard_size) for start in range(0, len(self.ids), shard_size)]
        self.num_documents = [len(self.ids[rows]) for rows in self._rows]
        count = len(self._rows)
        self.paths = tuple(Path(f"shard-{number:05d}-of-{count:05d}.parquet") for number in range(count))

    @property
    def fingerprints(self) -> list[str]:
        """Hash of each shard."""
        return [_hash_texts(self.ids[rows], self.texts[rows]) for rows in self._rows]

    def blocks(self, number: int, size: int) -> Iterator[tuple[list[str], Sequence[str]]]:
        """Ids and texts of one shard."""
        yield self.ids[self._rows[number]], self.texts[self._rows[number]]

    def sample(self, size: int, *, seed: int) -> Sequence[str]:
        """All texts: the model draws its own sample."""
        return self.texts


ShardedCorpus: TypeAlias = ParquetCorpus | ShardedTexts


def encode_corpus(
    model: SentenceTransformer,
    documents: Corpus,
    folder: str | os.PathLike,
    *,
    batch_size: int = 32,
    shard_size: int = 1024,
    seed: int = 0,
) -> EncodedCorpus:
    """
    Encodes a corpus into a folder, or resumes an interrupted run.

    Args:
        model (`SentenceTransformer`):
            A CDE checkpoint, a model with context-frequency pooling, or a plain model. A contextual model uses its own
            context; without one, it gets a sample of the documents.
        documents (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str` or `os.PathLike`):
            A corpus, as for [`load_corpus`]: a list of texts, texts by id, a dataset or a path. Parquet files are read
            block by block and give one file of vectors each.
        folder (`str` or `os.PathLike`):
            Folder to write.
        batch_size (`int`, *optional*, defaults to `32`):
            Number of texts to encode at once.
        shard_size (`int`, *optional*, defaults to `1024`):
            Number of documents in a file, or in a block of a Parquet file. A file that was interrupted is encoded
            again.
        seed (`int`, *optional*, defaults to `0`):
            Seed with which a context is sampled.

    Returns:
        `EncodedCorpus`: The corpus with its vectors.
    """
    check_counts(batch_size=batch_size, shard_size=shard_size)
    check_seed(seed)
    folder = Path(folder)
    corpus = shard_corpus(documents, shard_size)
    state = process_state()
    with ENCODED_CORPUS.locked(folder) if state.is_main_process else nullcontext():
        own = begin(model, corpus, folder, shard_size=shard_size, seed=seed) if state.is_main_process else None
        state.wait_for_everyone()
        encoded = EncodedCorpus(folder, ENCODED_CORPUS.read_manifest(folder))
        model = model_of(model, encoded) if own is None else own
        left = [number for number, path in enumerate(encoded.paths) if not path.exists()]
        state.wait_for_everyone()  # all processes look before one writes
        mine = left[state.process_index :: state.num_processes]
        bar = tqdm(
            total=sum(corpus.num_documents[number] for number in mine),
            desc="Encode documents",
            unit=" documents",
            disable=not state.is_main_process,
        )
        with bar:
            results = [encode_shard(model, corpus, encoded, number, batch_size, bar) for number in mine]
        results = gather_object(results)
        if state.is_main_process:
            finish(encoded, results)
    state.wait_for_everyone()
    refuse_failures(results)
    return replace(EncodedCorpus.load(folder), model=model)


def shard_corpus(documents: Corpus | ParquetCorpus, shard_size: int) -> ShardedCorpus:
    """Splits a corpus into shards: the files of a corpus in Parquet files, or `shard_size` documents of others."""
    if isinstance(documents, ParquetCorpus):
        return documents
    return ParquetCorpus.open(documents) or ShardedTexts(documents, shard_size)


def begin(
    model: SentenceTransformer, corpus: ShardedCorpus, folder: Path, *, shard_size: int, seed: int
) -> SentenceTransformer | None:
    """
    Writes what all shards share, the manifest and the context, and returns the model with its context. Or checks that
    the folder was started with the same.
    """
    facts = {
        "num_documents": sum(corpus.num_documents),
        "shard_size": shard_size,
        "shards": {
            path.name: fingerprint for path, fingerprint in zip(corpus.paths, corpus.fingerprints, strict=True)
        },
    }
    if EncodedCorpus.exists(folder):
        _resume(model, facts, folder)
        return None
    needs_context = find_contextual_module(model) is not None and get_context(model) is None
    model = with_own_context(model, corpus.sample(_MAX_SAMPLE, seed=seed) if needs_context else [], seed=seed)
    context = get_context(model)
    with ENCODED_CORPUS.replacing(folder, {**facts, "origin": vector_origin(model).to_dict()}) as new_folder:
        if context is not None:
            context.save(new_folder / _CONTEXT_FILE)
    return model


def _resume(model: SentenceTransformer, facts: dict[str, Any], folder: Path) -> None:
    """Checks that a folder was started with the same. Documents of unfinished shards may have changed."""
    encoded = EncodedCorpus(folder, ENCODED_CORPUS.read_manifest(folder))
    found = encoded.manifest
    for path in encoded.paths:
        damage = find_damage(path, found["files"][path.name]) if path.name in found["files"] else None
        if damage is not None:
            logger.warning(f"`{path}` {damage}. It is encoded again.")
            path.unlink(missing_ok=True)
    context = get_context(model)
    wanted = {
        "shard_size": facts["shard_size"],
        "number of shards": len(facts["shards"]),
        "context": context.hash if context is not None else found["origin"]["context"],
        **{path.name: facts["shards"].get(path.name) for path in encoded.paths if path.exists()},
    }
    there = {
        **found["shards"],
        "shard_size": found["shard_size"],
        "number of shards": len(found["shards"]),
        "context": found["origin"]["context"],
    }
    for name, value in wanted.items():
        if there[name] != value:
            raise ValueError(
                f"`{folder}` was started with another `{name}`: {there[name]}, not {value}. Remove the folder or give "
                "another one."
            )
    logger.info(f"Resuming `{folder}`.")
    if found["shards"] != facts["shards"]:
        ENCODED_CORPUS.write_manifest(folder, {**found, **facts}, names=[], kept=found["files"])


def model_of(model: SentenceTransformer, encoded: EncodedCorpus) -> SentenceTransformer:
    """A model with the context of an encoded corpus. Refuses another model than the one that began it."""
    model = with_context(model, encoded.context, encoded.origin.settings)
    if vector_origin(model) != encoded.origin:
        raise ValueError(
            f"`{encoded.folder}` was started with another model or setting: "
            f"{vector_origin(model).differences(encoded.origin)}. Give that model, or another folder."
        )
    return model


def encode_shard(
    model: SentenceTransformer,
    corpus: ShardedCorpus,
    encoded: EncodedCorpus,
    number: int,
    batch_size: int,
    bar: tqdm,
) -> ShardResult:
    """Encodes one shard and writes its file. A shard that cannot be read or encoded is reported, not raised."""
    embedder = SentenceTransformerEmbedder(model, "the model", batch_size=batch_size)
    path = encoded.paths[number]
    try:
        blocks = corpus.blocks(number, encoded.manifest["shard_size"])
        tables = (_encode_block(embedder, *block, bar) for block in blocks)
        # A file without documents has vectors of the same width as the others.
        first = next(tables, None) or _encode_block(embedder, ["0"], ["none"], tqdm(disable=True)).slice(0, 0)
        schema = first.schema.with_metadata({"vector_origin": json.dumps(encoded.origin.to_dict())})
        with atomic_file(path) as new_path, pq.ParquetWriter(new_path, schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table, row_group_size=max(1, len(table)))
    except ValueError as error:
        logger.warning(f"`{path.name}` is left out: {error}")
        return ShardResult(path.name, None, str(error))
    return ShardResult(path.name, describe(path))


def _encode_block(
    embedder: SentenceTransformerEmbedder, document_ids: list[str], texts: Sequence[str], bar: tqdm
) -> pa.Table:
    """The vectors of a block, which is a row group of the file."""
    vectors = embedder.embed_in_pieces(texts, bar)
    values = pa.array(vectors.ravel(), pa.float32())
    columns = {
        "id": pa.array(document_ids, pa.string()),
        "text": pa.array(texts, pa.string()),
        "vector": pa.FixedSizeListArray.from_arrays(values, vectors.shape[1]),
    }
    return pa.table(columns)


def finish(encoded: EncodedCorpus, results: Iterable[ShardResult]) -> None:
    """Adds the hashes of new shards to the manifest: of this run, and of one that was killed."""
    files = encoded.manifest["files"] | {each.name: each.description for each in results if each.description}
    left = [path.name for path in encoded.paths if path.name not in files and path.exists()]
    if left or files != encoded.manifest["files"]:
        ENCODED_CORPUS.write_manifest(encoded.folder, encoded.manifest, names=left, kept=files)


def refuse_failures(results: Iterable[ShardResult]) -> None:
    """Names the shards that could not be encoded, after all others were."""
    failed = [each for each in results if each.failure is not None]
    if failed:
        raise ValueError(
            f"{len(failed)} shards could not be encoded, such as `{failed[0].name}`: {failed[0].failure} All others "
            "are finished. Repair these documents and run the same again."
        )


def _hash_texts(document_ids: list[str], texts: Sequence[str]) -> str:
    digest = xxhash.xxh3_128()
    for name, text in zip(document_ids, texts, strict=True):
        # With their lengths, so that another split into ids and texts has another hash.
        encoded_name, encoded_text = name.encode(), text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded_name)} {len(encoded_text)} ".encode() + encoded_name + encoded_text)
    return digest.hexdigest()


__all__ = [
    "ENCODED_CORPUS",
    "EncodedCorpus",
    "ShardResult",
    "ShardedCorpus",
    "ShardedTexts",
    "begin",
    "encode_corpus",
    "encode_shard",
    "finish",
    "model_of",
    "refuse_failures",
    "shard_corpus",
]
