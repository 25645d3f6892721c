"""Vectors of a model: made with its prompts, checked, and of one origin. Vectors of two origins cannot be compared."""

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from .contextual_models import find_cde_model, get_context
from .data import check_counts, check_texts
from .modeling import ContextualModule
from .modeling.context import fingerprint
from .modeling.frequency_pooling import tokenizer_fingerprint


# Texts that are sorted by length and encoded, before others are read.
_TEXTS_AT_ONCE = 4096


class SentenceTransformerEmbedder:
    """
    An [`Embedder`] around any sentence-transformers model, with the model's own prompts for queries and documents.

    Args:
        model (`SentenceTransformer`):
            The model. Its similarity must be the cosine or the inner product.
        name (`str`):
            Name of its row in a table.
        batch_size (`int`, *optional*, defaults to `32`):
            Number of texts to encode at once.
    """

    def __init__(self, model: SentenceTransformer, name: str, *, batch_size: int = 32):
        if model.similarity_fn_name not in ("cosine", "dot"):
            raise ValueError(
                f"`{name}` uses the similarity `{model.similarity_fn_name}`, but the search supports `cosine` and "
                "`dot`. Set `model.similarity_fn_name` to one of them."
            )
        self.model = model
        self.name = name
        check_counts(batch_size=batch_size)
        self.batch_size = batch_size

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of shape `(num_texts, dim)`, unit-norm if the model uses the cosine."""
        check_texts(texts, kind="query")
        return self.model.encode_query(list(texts), **self._encode_kwargs())

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of shape `(num_texts, dim)`, unit-norm if the model uses the cosine."""
        check_texts(texts)
        return self.model.encode_document(list(texts), **self._encode_kwargs())

    def embed_in_pieces(self, texts: Sequence[str], bar: "tqdm[Any]") -> np.ndarray:
        """Returns checked vectors of documents, and moves a progress bar with each batch."""
        *_, last = self.model.children()

        def move(module: Any, inputs: Any, output: dict[str, Any]) -> None:
            bar.update(len(output["sentence_embedding"]))

        hook = last.register_forward_hook(move)
        try:
            pieces = [texts[start : start + _TEXTS_AT_ONCE] for start in range(0, len(texts), _TEXTS_AT_ONCE)]
            vectors = np.concatenate([self.embed_documents(piece) for piece in pieces])
        finally:
            hook.remove()
        return check_vectors(vectors, "the documents", num_texts=len(texts))

    def _encode_kwargs(self) -> dict[str, Any]:
        is_cosine = self.model.similarity_fn_name == "cosine"
        return {"batch_size": self.batch_size, "normalize_embeddings": is_cosine, "show_progress_bar": False}


def check_vectors(
    vectors: np.ndarray,
    name: str,
    *,
    num_texts: int | None = None,
    width: int | None = None,
    is_cosine: bool = False,
) -> np.ndarray:
    """
    Returns vectors as a finite float32 matrix, or says what is wrong with them.

    Args:
        vectors (`np.ndarray`):
            The vectors of some texts.
        name (`str`):
            Name of the texts, for the message.
        num_texts (`int`, *optional*):
            Expected number of rows.
        width (`int`, *optional*):
            Expected number of columns.
        is_cosine (`bool`, *optional*, defaults to `False`):
            Whether vectors are compared by the cosine, in which case they are returned unit-norm.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or (num_texts is not None and len(vectors) != num_texts):
        expected = f"({'num_texts' if num_texts is None else num_texts}, dim)"
        raise ValueError(
            f"The vectors of {name} have the shape {vectors.shape}, expected {expected}. Give one row for each text."
        )
    if width is not None and vectors.shape[1] != width:
        raise ValueError(
            f"The vectors of {name} have {vectors.shape[1]} dimensions, but are compared with vectors of {width}. "
            "Use the same model for both."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.vecdot(vectors, vectors))  # not finite where the vector is not: one pass, no copy
    num_bad = len(vectors) - int(np.isfinite(norms).sum())
    if num_bad:
        raise ValueError(
            f"{num_bad} of the {len(vectors)} vectors of {name} are not finite (NaN or infinite). Check for a "
            "diverged model or an overflow in half precision."
        )
    if is_cosine and (np.abs(norms - 1) > 1e-3).any():
        vectors = vectors / np.maximum(norms, np.finfo(np.float32).tiny)[:, np.newaxis]
    return vectors


@dataclass(frozen=True)
class VectorOrigin:
    """
    Everything that the vector of a text depends on, except the text.

    Args:
        model (`str`):
            Fingerprint of the weights, without the first stage of a CDE checkpoint, which only affects the context.
        context (`str` or `None`):
            Hash of the context, `None` for a model without one.
        tokenizer (`str`, *optional*):
            Fingerprint of the tokenizer.
        max_length (`int`, *optional*):
            Maximum number of tokens of a text.
        query_prompt (`str`, *optional*, defaults to `""`):
            Prompt of queries.
        document_prompt (`str`, *optional*, defaults to `""`):
            Prompt of documents.
        truncate_dim (`int`, *optional*):
            Number of dimensions that are kept.
        similarity (`str`, *optional*, defaults to `"cosine"`):
            `"cosine"`, for unit-norm vectors, or `"dot"`.
        settings (`dict[str, Any]`, *optional*):
            Settings of the modules that can change without the weights, such as attention and pooling, where they
            differ from their defaults.
    """

    model: str
    context: str | None
    tokenizer: str | None = None
    max_length: int | None = None
    query_prompt: str = ""
    document_prompt: str = ""
    truncate_dim: int | None = None
    similarity: str = "cosine"
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "VectorOrigin":
        """Reads the output of [`VectorOrigin.to_dict`]. Unknown fields of earlier versions are skipped."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})

    def differences(self, other: "VectorOrigin") -> str:
        """Describes what differs. Empty if nothing does."""
        mine, theirs = ({**origin.to_dict(), **origin.settings} for origin in (self, other))
        return ", ".join(
            f"{name} {_show(theirs, name)} and not {_show(mine, name)}"
            for name in {**mine, **theirs}
            if name != "settings" and mine.get(name) != theirs.get(name)
        )


def _show(values: dict[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "its default"


def vector_origin(model: SentenceTransformer) -> VectorOrigin:
    """
    Returns the origin of the vectors that a model makes in its current state.

    Args:
        model (`SentenceTransformer`):
            A plain model, a model with context-frequency pooling, or a CDE checkpoint with a context.

    Returns:
        `VectorOrigin`: The origin, equal for equal models in any process.
    """
    context = get_context(model)
    if context is None and find_cde_model(model) is not None:
        raise ValueError(
            "This model has no context, so it gives first-stage vectors and no embeddings. Call `set_context(model, "
            "corpus)` first, or `set_context(model, Context())` to do without."
        )
    document_names = [name for name in ("document", "passage", "corpus") if name in model.prompts]
    return VectorOrigin(
        fingerprint(model),
        context.hash if context is not None else None,
        tokenizer=tokenizer_fingerprint(model.tokenizer),
        max_length=model.max_seq_length,
        query_prompt=model.prompts.get("query") or "",
        document_prompt=(model.prompts[document_names[0]] or "") if document_names else "",
        truncate_dim=model.truncate_dim,
        similarity=model.similarity_fn_name,
        settings=_settings(model),
    )


def _settings(model: SentenceTransformer) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    modules: Iterator[Any] = model.children()
    for index, module in enumerate(modules):
        own = {}
        if isinstance(module, ContextualModule):
            own = module.settings
        elif index > 0:  # settings of the first module are fields of their own, or show in the weights
            own = module.get_config_dict()
        # Without defaults, so that a setting that is new in a later version does not change the origin.
        parameters = inspect.signature(type(module)).parameters
        settings |= {
            name: value for name, value in own.items() if name not in parameters or value != parameters[name].default
        }
    return json.loads(json.dumps(settings))  # equal to settings read from a file


__all__ = ["SentenceTransformerEmbedder", "VectorOrigin", "check_vectors", "vector_origin"]
