"""Vectors for an index: encoded here, or made elsewhere and checked."""

import os
from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..encoding import EncodedCorpus
from ..vectors import SentenceTransformerEmbedder, VectorOrigin, check_vectors


_NUM_CHECKED_TEXTS = 8
_MIN_CHECKED_COSINE = 0.99


def encode_documents(model: SentenceTransformer, texts: Sequence[str], batch_size: int) -> np.ndarray:
    """Encodes documents into vectors of shape `(num_documents, dim)`, with a progress bar if there are many."""
    embedder = SentenceTransformerEmbedder(model, "the model", batch_size=batch_size)
    is_short = len(texts) <= 8 * batch_size
    with tqdm(total=len(texts), desc="Encode documents", unit=" documents", disable=is_short) as bar:
        return embedder.embed_in_pieces(texts, bar)


def read_encoded(encoded: EncodedCorpus) -> tuple[list[str], list[str], np.ndarray]:
    """Reads ids, texts and vectors of an encoded corpus, with one file in memory beside them."""
    document_ids: list[str] = []
    texts: list[str] = []
    all_vectors = np.empty((len(encoded), 0), dtype=np.float32)
    is_cosine = encoded.origin.similarity == "cosine"
    for names, shard_texts, vectors in tqdm(encoded.shards(), "Read shards", len(encoded.paths), unit="shard"):
        if not document_ids:
            all_vectors = np.empty((len(encoded), vectors.shape[1]), dtype=np.float32)
        rows = all_vectors[len(document_ids) : len(document_ids) + len(names)]
        rows[:] = check_vectors(
            vectors, "the documents", num_texts=len(rows), width=rows.shape[1], is_cosine=is_cosine
        )
        document_ids += names
        texts += shard_texts
    return document_ids, texts, all_vectors


def check_texts(texts: Sequence[str] | None, num_documents: int) -> Sequence[str | None]:
    """Returns texts as a list, one for each document; all `None` if no texts are given."""
    if texts is None:
        return [None] * num_documents
    texts = list(texts)
    if len(texts) != num_documents:
        raise ValueError(f"There are {len(texts)} texts for {num_documents} ids. Give one text for each id.")
    other = next((text for text in texts if not isinstance(text, str)), "")
    if not isinstance(other, str):
        raise TypeError(f"Documents must be texts, got a `{type(other).__name__}`. Give their contents.")
    return texts


def check_origin(own: VectorOrigin, origin: VectorOrigin, advice: str) -> None:
    """Refuses vectors of another model or context, by their origin. The advice ends the message."""
    if origin != own:
        raise ValueError(f"The vectors come from another model or context: {own.differences(origin)}. {advice}")


def encode_again(model: SentenceTransformer, vectors: np.ndarray, texts: Sequence[str | None]) -> None:
    """Refuses vectors of another model or context, by encoding some of their texts again."""
    rows = [row for row in np.random.default_rng(0).permutation(len(texts)).tolist() if texts[row]]
    rows = rows[:_NUM_CHECKED_TEXTS]
    if not rows:
        raise ValueError(
            "The origin of the vectors is unknown: got neither `origin` nor texts to encode again. Give "
            "`origin=vector_origin(model)` of the model that made them, or `texts`."
        )
    again = encode_documents(model, [texts[row] or "" for row in rows], batch_size=_NUM_CHECKED_TEXTS)
    given = vectors[rows]
    if again.shape != given.shape:
        raise ValueError(
            f"The vectors have {given.shape[1]} dimensions, but the vectors of this model have {again.shape[1]}. Give "
            "the model that made them."
        )
    scale = np.linalg.norm(again, axis=1) * np.linalg.norm(given, axis=1)
    cosines = (again * given).sum(axis=1) / np.maximum(scale, np.finfo(np.float32).tiny)
    if cosines.min() < _MIN_CHECKED_COSINE:
        text = texts[rows[cosines.argmin()]] or ""
        raise ValueError(
            f"The vectors come from another model or context: the text {text[:40]!r} has a cosine of "
            f"{cosines.min():.3f} with its vector by this model, expected {_MIN_CHECKED_COSINE} or more. Give the "
            "model and context that they were made with."
        )


def model_name(model: SentenceTransformer) -> str | None:
    """Returns the name or absolute path that a model was loaded from, if known."""
    network = getattr(model[0], "model", None)
    name = getattr(getattr(network, "config", None), "_name_or_path", None) or None
    return os.path.abspath(name) if name is not None and os.path.isdir(name) else name


__all__ = ["check_origin", "check_texts", "encode_again", "encode_documents", "model_name", "read_encoded"]
