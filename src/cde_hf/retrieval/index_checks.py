"""Ids, texts and vectors that come into an index: taken as they are, or refused with the reason."""

from collections.abc import Mapping, Sequence

import faiss
import numpy as np


def ids_and_texts(documents: Mapping[str, str] | Sequence[str]) -> tuple[list[str], list[str | None]]:
    """Ids and texts of documents that are given by their ids, or in a list and then numbered."""
    if isinstance(documents, str):
        raise TypeError("`documents` must be several texts, got one. Put it in a list: `[text]`.")
    if isinstance(documents, Mapping):
        document_ids, texts = list(documents), list(documents.values())
    else:
        texts = list(documents)
        document_ids = [str(number) for number in range(len(texts))]
    return checked_ids(document_ids), checked_texts(texts, len(document_ids))


def checked_ids(document_ids: Sequence[str]) -> list[str]:
    """Ids as a list of strings, each there once."""
    document_ids = list(document_ids)
    if set(map(type, document_ids)) - {str}:
        other = next(document_id for document_id in document_ids if type(document_id) is not str)
        raise TypeError(f"Ids must be strings, got the `{type(other).__name__}` {other!r}. Use `str(document_id)`.")
    if len(set(document_ids)) < len(document_ids):
        seen: set[str] = set()
        repeated = [name for name in document_ids if name in seen or seen.add(name)]
        raise ValueError(
            f"{len(repeated)} ids occur more than once, such as {repeated[:3]}. Give each document an id of its own."
        )
    return document_ids


def checked_texts(texts: Sequence[str] | None, num_documents: int) -> list[str | None]:
    """Texts as a list, one for each document; `None` for each, if there are none."""
    if texts is None:
        return [None] * num_documents
    texts = list(texts)
    if len(texts) != num_documents:
        raise ValueError(f"There are {len(texts)} texts for {num_documents} ids. Give one text for each id.")
    other = next((text for text in texts if not isinstance(text, str)), "")
    if not isinstance(other, str):
        raise TypeError(f"Documents must be texts, got a `{type(other).__name__}`. Give their contents.")
    return texts


def checked_vectors(vectors: np.ndarray, num_rows: int, *, is_cosine: bool, dim: int | None = None) -> np.ndarray:
    """Vectors as a finite float32 matrix, of length 1 if they are compared by the cosine."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != num_rows or (dim is not None and vectors.shape[1] != dim):
        raise ValueError(
            f"The vectors have the shape {vectors.shape}, expected ({num_rows}, {dim or 'dim'}). Give one row of the "
            "model's width for each document or query."
        )
    lengths = np.empty(len(vectors), dtype=np.float32)  # in which NaN and infinity show
    faiss.fvec_norms_L2(faiss.swig_ptr(lengths), faiss.swig_ptr(vectors), vectors.shape[1], len(vectors))
    num_bad = len(vectors) - int(np.isfinite(lengths).sum())
    if num_bad:
        raise ValueError(
            f"{num_bad} of {len(vectors)} vectors are not finite (NaN or infinite). Look for a diverged model or a "
            "too narrow floating point type."
        )
    if is_cosine and (np.abs(lengths - 1) > 1e-3).any():
        vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)[:, np.newaxis]
    return vectors


__all__ = ["checked_ids", "checked_texts", "checked_vectors", "ids_and_texts"]
