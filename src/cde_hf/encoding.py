"""
Encodes a corpus into a folder of Parquet files, on any number of processes, and resumes after an interruption.

1. The main process fixes the context and writes it to the folder, together with the hash of the corpus and the model.
2. The corpus is split into shards. Each of `n` processes takes every n-th shard, encodes it and writes one Parquet
   file with the columns `id`, `text` and `vector`. A file gets its final name when it is complete.
3. The main process adds the hashes of the files to the manifest.

A second run skips finished shards. It refuses a folder of another corpus or model. `accelerate launch` starts the
processes, on one machine or on several machines that share the folder.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from accelerate import PartialState
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm
from transformers.utils import logging

from .contextual_models import get_context, with_context, with_own_context
from .data import Corpus, check_counts, check_seed, ids_and_texts
from .files import FolderKind, atomic_file, find_damage
from .modeling import Context
from .processes import process_state
from .vectors import SentenceTransformerEmbedder, VectorOrigin, vector_origin


logger = logging.get_logger(__name__)

_FOLDER = FolderKind("encoded corpus", 3, "Run `cde-hf encode MODEL CORPUS FOLDER`, which keeps undamaged shards.")
_CONTEXT_FILE = "context.safetensors"


@dataclass(frozen=True, repr=False)
class EncodedCorpus:
    """
    A corpus with its vectors in a folder of Parquet files, made by [`encode_corpus`].

    Args:
        folder (`Path`):
            The folder.
        manifest (`dict`):
            Origin of the vectors, number of documents, size of a shard, hash of the corpus.
        model (`SentenceTransformer`, *optional*):
            The model with the context of the vectors, if this process encoded the corpus.
    """

    folder: Path
    manifest: dict[str, Any]
    model: SentenceTransformer | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "EncodedCorpus":
        """Opens a folder and refuses one with missing shards."""
        encoded = cls(Path(folder), _FOLDER.read_manifest(folder))
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
        return _FOLDER.is_in(folder)

    def __repr__(self) -> str:
        return f"EncodedCorpus({str(self.folder)!r}, {len(self):,} documents)"

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
        _FOLDER.check_file(path, self.manifest["files"][path.name])
        return Context.load(path)

    @property
    def paths(self) -> list[Path]:
        """The Parquet files, in the order of the corpus."""
        num_shards = -(-len(self) // self.manifest["shard_size"])
        return [self.folder / f"shard-{number:05d}-of-{num_shards:05d}.parquet" for number in range(num_shards)]

    @property
    def unfinished(self) -> list[Path]:
        """The files that are missing, or not in the manifest yet."""
        return [path for path in self.paths if path.name not in self.manifest["files"] or not path.exists()]

    def shards(self) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
        """Ids, texts and vectors of shape `(num_documents, dim)`, file by file. Compares the hash of each file."""
        for path in self.paths:
            _FOLDER.check_file(path, self.manifest["files"][path.name])
            table = pq.read_table(path)
            vectors = table["vector"].combine_chunks()
            matrix = vectors.values.to_numpy(zero_copy_only=False).reshape(len(table), -1)
            yield table["id"].to_pylist(), table["text"].to_pylist(), matrix


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
            A corpus, as for [`load_corpus`]: a list of texts, texts by id, a dataset or a path.
        folder (`str` or `os.PathLike`):
            Folder to write.
        batch_size (`int`, *optional*, defaults to `32`):
            Number of texts to encode at once.
        shard_size (`int`, *optional*, defaults to `1024`):
            Number of documents in a file. A file that was interrupted is encoded again.
        seed (`int`, *optional*, defaults to `0`):
            Seed with which a context is sampled.

    Returns:
        `EncodedCorpus`: The corpus with its vectors.
    """
    check_counts(batch_size=batch_size, shard_size=shard_size)
    check_seed(seed)
    folder = Path(folder)
    document_ids, texts = ids_and_texts(documents)
    state = process_state()
    with _FOLDER.locked(folder) if state.is_main_process else nullcontext():
        own = None
        if state.is_main_process:
            own = _begin(model, document_ids, texts, folder, shard_size=shard_size, seed=seed)
            unfinished = EncodedCorpus(folder, _FOLDER.read_manifest(folder)).unfinished
        state.wait_for_everyone()
        encoded = EncodedCorpus(folder, _FOLDER.read_manifest(folder))
        model = with_context(model, encoded.context, encoded.origin.settings) if own is None else own
        if vector_origin(model) != encoded.origin:
            raise ValueError(
                f"`{folder}` was started with another model or setting: "
                f"{vector_origin(model).differences(encoded.origin)}. Give that model, or another folder."
            )
        _encode_shards(model, document_ids, texts, encoded, state, batch_size)
        state.wait_for_everyone()
        if state.is_main_process and unfinished:
            names = [path.name for path in unfinished]
            _FOLDER.write_manifest(folder, encoded.manifest, names=names, kept=encoded.manifest["files"])
    state.wait_for_everyone()
    return replace(EncodedCorpus.load(folder), model=model)


def _begin(
    model: SentenceTransformer,
    document_ids: list[str],
    texts: Sequence[str],
    folder: Path,
    *,
    shard_size: int,
    seed: int,
) -> SentenceTransformer | None:
    """
    Writes what all shards share, and returns the model with its context. Or checks that the folder was started with
    the same.
    """
    wanted = {
        "num_documents": len(document_ids),
        "corpus_hash": _hash_corpus(document_ids, texts),
        "shard_size": shard_size,
    }
    if EncodedCorpus.exists(folder):
        found = _FOLDER.read_manifest(folder)
        context = get_context(model)
        wanted_context = context.hash if context is not None else found["origin"]["context"]
        for name, value in {**wanted, "context": wanted_context}.items():
            there = found["origin"]["context"] if name == "context" else found.get(name)
            if there != value:
                raise ValueError(
                    f"`{folder}` was started with another `{name}`: {there}, not {value}. Remove the folder or give "
                    "another one."
                )
        logger.info(f"Resuming `{folder}`.")
        for path in EncodedCorpus(folder, found).paths:
            damage = find_damage(path, found["files"][path.name]) if path.name in found["files"] else None
            if damage is not None:
                logger.warning(f"`{path}` {damage}. It is encoded again.")
                path.unlink(missing_ok=True)
        return None
    model = with_own_context(model, texts, seed=seed)
    context = get_context(model)
    with _FOLDER.replacing(folder, {**wanted, "origin": vector_origin(model).to_dict()}) as new_folder:
        if context is not None:
            context.save(new_folder / _CONTEXT_FILE)
    return model


def _encode_shards(
    model: SentenceTransformer,
    document_ids: list[str],
    texts: Sequence[str],
    encoded: EncodedCorpus,
    state: PartialState,
    batch_size: int,
) -> None:
    embedder = SentenceTransformerEmbedder(model, "the model", batch_size=batch_size)
    shard_size = encoded.manifest["shard_size"]
    mine = list(enumerate(encoded.paths))[state.process_index :: state.num_processes]
    left = [(number, path) for number, path in mine if not path.exists()]
    bar = tqdm(
        total=sum(min(shard_size, len(texts) - number * shard_size) for number, _ in left),
        desc="Encode documents",
        unit=" documents",
        disable=not state.is_main_process,
    )
    for number, path in left:
        rows = slice(number * shard_size, (number + 1) * shard_size)
        shard_texts = texts[rows]
        _write_shard(path, document_ids[rows], shard_texts, embedder.embed_in_pieces(shard_texts, bar), encoded.origin)
    bar.close()


def _write_shard(
    path: Path, document_ids: list[str], texts: Sequence[str], vectors: np.ndarray, origin: VectorOrigin
) -> None:
    values = pa.array(vectors.ravel(), pa.float32())
    table = pa.table(
        {
            "id": pa.array(document_ids, pa.string()),
            "text": pa.array(texts, pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(values, vectors.shape[1]),
        }
    ).replace_schema_metadata({"vector_origin": json.dumps(origin.to_dict())})
    with atomic_file(path) as new_path:
        pq.write_table(table, new_path)


def _hash_corpus(document_ids: list[str], texts: Sequence[str]) -> str:
    digest = xxhash.xxh3_128()
    for name, text in zip(document_ids, texts, strict=True):
        # With their lengths, so that another split into ids and texts has another hash.
        encoded_name, encoded_text = name.encode(), text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded_name)} {len(encoded_text)} ".encode() + encoded_name + encoded_text)
    return digest.hexdigest()


__all__ = ["EncodedCorpus", "encode_corpus"]
