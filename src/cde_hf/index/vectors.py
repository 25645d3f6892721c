"""Vectors for an index: encoded here, or made elsewhere and checked."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..contextual_models import get_context, with_context
from ..data import check_texts
from ..encoding import EncodedCorpus
from ..messages import kind_of
from ..modeling import Context
from ..modeling.context import fingerprint
from ..vectors import SentenceTransformerEmbedder, VectorOrigin, check_vectors, vector_origin


GIVE_THE_MODEL = "Give the model and context that they were made with."
NO_TEXTS = (
    "Hybrid search needs the texts of the documents, but this index has vectors alone. Build it with texts, or search "
    "with `hybrid=False`."
)
_NUM_CHECKED_TEXTS = 8
_MIN_CHECKED_COSINE = 0.99


def encode_documents(model: SentenceTransformer, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
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


def check_given(
    model: SentenceTransformer,
    vectors: np.ndarray,
    texts: Sequence[str] | None,
    origin: VectorOrigin | None,
    num_documents: int,
) -> tuple[np.ndarray, Sequence[str | None]]:
    """Returns vectors that were made elsewhere and their texts, or says why they do not belong to the model."""
    own = vector_origin(model)
    is_cosine = own.similarity == "cosine"
    checked = check_vectors(vectors, "the documents", num_texts=num_documents, is_cosine=is_cosine)
    kept_texts = listed_texts(texts, num_documents)
    if origin is None:
        encode_again(model, checked, kept_texts)
    else:
        check_origin(own, origin, GIVE_THE_MODEL)
    if checked.flags.writeable and np.may_share_memory(checked, vectors):  # the caller may change them later
        checked = checked.copy()
    return checked, kept_texts


def refuse_one_id(document_ids: Sequence[str]) -> None:
    """Refuses a single id in place of a list, which would be read letter by letter."""
    if isinstance(document_ids, str):
        raise TypeError("`document_ids` must be a list of ids, got one. Put it in a list: `[document_id]`.")


def refuse_texts_without_ids(documents: Any) -> None:
    """Refuses a list of texts for an index that has documents."""
    if isinstance(documents, Sequence) and not isinstance(documents, str):
        raise TypeError(
            f"`documents` must be texts by their ids, got {kind_of(documents)}. Give a dictionary: the ids "
            "must differ from the ids in the index."
        )


def check_unchanged(model: SentenceTransformer, origin: VectorOrigin, checked: Context | None) -> Context | None:
    """Returns the context of a model that encodes for an index, or says what of it changed since it was checked."""
    if fingerprint(model) != origin.model:
        raise ValueError(
            "The weights of the model have changed since the index was made, so its queries do not match the vectors. "
            "Load the original model, or build the index again."
        )
    context = get_context(model)
    if context is not checked and (None if context is None else context.hash) != origin.context:
        raise ValueError(
            "The context of `index.model` was changed, so its queries do not match the vectors. Give it the context "
            "of the index, or load the index again."
        )
    return context


def listed_texts(texts: Sequence[str] | None, num_documents: int) -> Sequence[str | None]:
    """Returns texts as a list, one for each document; all `None` if no texts are given."""
    if texts is None:
        return [None] * num_documents
    texts = list(texts)
    if len(texts) != num_documents:
        raise ValueError(f"There are {len(texts)} texts for {num_documents} ids. Give one text for each id.")
    check_texts(texts)
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
    again = encode_documents(model, [texts[row] or "" for row in rows])
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


def model_of_index(
    title: str, model: SentenceTransformer, context: Context | None, origin: dict[str, Any], name: str | None = None
) -> SentenceTransformer:
    """
    Returns the model that encodes the queries of a stored index.

    Args:
        title (`str`):
            What the index is, for a message.
        model (`SentenceTransformer`):
            The model that the index was made with. Its current context is ignored.
        context (`Context`, *optional*):
            The context of the index.
        origin (`dict[str, Any]`):
            The origin of its vectors, by [`VectorOrigin.to_dict`].
        name (`str`, *optional*):
            Name of the model that it was made with.
    """
    expected = VectorOrigin.from_dict(origin)
    if fingerprint(model) != expected.model:
        named = f"`{name}` ({expected.model})" if name else expected.model
        raise ValueError(
            f"{title} was made with the model {named}, but this one has other weights ({fingerprint(model)}). Give "
            "that model, or build the index again."
        )
    model = with_context(model, context, expected.settings)
    own = vector_origin(model)
    if own != expected:
        raise ValueError(
            f"{title} was made with other settings: {own.differences(expected)}. Set them on the model, or build the "
            "index again."
        )
    return model


def model_name(model: SentenceTransformer) -> str | None:
    """Returns the name or absolute path that a model was loaded from, if known."""
    network = getattr(model[0], "model", None)
    name = getattr(getattr(network, "config", None), "_name_or_path", None) or None
    return os.path.abspath(name) if name is not None and os.path.isdir(name) else name


__all__ = [
    "GIVE_THE_MODEL",
    "NO_TEXTS",
    "check_given",
    "check_origin",
    "listed_texts",
    "check_unchanged",
    "encode_again",
    "encode_documents",
    "model_name",
    "model_of_index",
    "read_encoded",
    "refuse_one_id",
    "refuse_texts_without_ids",
]
