"""Vectors of documents for an index: made here, or made elsewhere and checked."""

from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from .index_checks import checked_vectors
from .systems import SentenceTransformerEmbedder
from .vector_origin import VectorOrigin


_DOCUMENTS_AT_ONCE = 4096
_NUM_CHECKED_TEXTS = 8
_MIN_CHECKED_COSINE = 0.99


def encode_documents(model: SentenceTransformer, texts: Sequence[str], batch_size: int) -> np.ndarray:
    """Vectors of documents, of shape `(num_documents, dim)`, with a bar if there are many."""
    embedder = SentenceTransformerEmbedder(model, "the model", batch_size=batch_size)
    starts = range(0, len(texts), _DOCUMENTS_AT_ONCE)
    bar = tqdm(starts, desc="Encode documents", unit="block", disable=len(starts) == 1)
    vectors = [embedder.embed_documents(texts[start : start + _DOCUMENTS_AT_ONCE]) for start in bar]
    return checked_vectors(np.concatenate(vectors), len(texts), is_cosine=False)


def check_origin(
    model: SentenceTransformer,
    own_origin: VectorOrigin,
    origin: VectorOrigin | None,
    vectors: np.ndarray,
    texts: list[str | None],
) -> None:
    """Refuses vectors that the model, as it is, would not give: by their origin, or by encoding some texts again."""
    if origin is not None:
        if origin != own_origin:
            raise ValueError(
                f"The vectors come from another model or context: {own_origin.differences(origin)}. Give the model "
                "and context that they were made with."
            )
        return
    rows = [row for row in np.random.default_rng(0).permutation(len(texts)).tolist() if texts[row]]
    rows = rows[:_NUM_CHECKED_TEXTS]
    if not rows:
        raise ValueError(
            "Nothing says where the vectors come from: got neither `origin` nor texts to encode again. Give "
            "`origin=vector_origin(model)` of the model that made them, or `texts`."
        )
    again = encode_documents(model, [texts[row] for row in rows], batch_size=_NUM_CHECKED_TEXTS)
    given = vectors[rows]
    if again.shape != given.shape:
        raise ValueError(
            f"The vectors have {given.shape[1]} dimensions, but the model gives {again.shape[1]}: they come from "
            "another one. Give the model that made them."
        )
    scale = np.linalg.norm(again, axis=1) * np.linalg.norm(given, axis=1)
    cosines = (again * given).sum(axis=1) / np.maximum(scale, np.finfo(np.float32).tiny)
    if cosines.min() < _MIN_CHECKED_COSINE:
        raise ValueError(
            f"The vectors come from another model or context: that of the text {texts[rows[cosines.argmin()]][:40]!r} "
            f"has a cosine of {cosines.min():.3f} with what this model gives for it, expected {_MIN_CHECKED_COSINE} "
            "or more. Give the model and context that they were made with."
        )


__all__ = ["check_origin", "encode_documents"]
