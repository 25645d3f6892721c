"""The origin of vectors: model, context and settings. Vectors of two origins cannot be compared."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sentence_transformers import SentenceTransformer

from ..modeling.fingerprint import fingerprint
from .model_contexts import context_of
from .systems import is_contextual


# Settings of a CDE configuration that no vector depends on, or that show in the weights.
_IDLE_SETTINGS = (
    "first_stage_config",
    "second_stage_config",
    "has_first_stage",
    "sequence_dropout_prob",
    "initializer_range",
)


@dataclass(frozen=True)
class VectorOrigin:
    """
    Everything that the vector of a text depends on, except the text.

    Args:
        model (`str`):
            Fingerprint of the weights. For a CDE checkpoint, of the second stage: the first stage only affects the
            context.
        context (`str` or `None`):
            Hash of the context, `None` for a model without one.
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
            Settings of a CDE checkpoint's configuration that can change without the weights, such as attention,
            pooling and lexical part. Empty for other models.
    """

    model: str
    context: str | None
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
        if bool(self.settings) != bool(other.settings):
            return "settings that only one of both has, such as a CDE checkpoint and another model or version"
        mine, theirs = ({**origin.to_dict(), **origin.settings} for origin in (self, other))
        return ", ".join(
            f"{name} {theirs.get(name)!r} and not {mine.get(name)!r}"
            for name in {**mine, **theirs}
            if name != "settings" and mine.get(name) != theirs.get(name)
        )


def vector_origin(model: SentenceTransformer) -> VectorOrigin:
    """
    Returns the origin of the vectors that a model makes in its current state.

    Args:
        model (`SentenceTransformer`):
            A plain model, a model with context-frequency pooling, or a CDE checkpoint with a context.

    Returns:
        `VectorOrigin`: The origin, equal for equal models in any process.
    """
    context = context_of(model)
    if is_contextual(model) and context is None:
        raise ValueError(
            "This model has no context, so it gives first-stage vectors and no embeddings. Call "
            "`model[0].set_context(documents)` first, or `set_context(CorpusContext.null())` to do without."
        )
    document_names = [name for name in ("document", "passage", "corpus") if name in model.prompts]
    return VectorOrigin(
        model_fingerprint(model),
        context.hash if context is not None else None,
        max_length=model.max_seq_length,
        query_prompt=model.prompts.get("query") or "",
        document_prompt=(model.prompts[document_names[0]] or "") if document_names else "",
        truncate_dim=model.truncate_dim,
        similarity=model.similarity_fn_name,
        settings=_settings(model),
    )


def _settings(model: SentenceTransformer) -> dict[str, Any]:
    if not is_contextual(model):
        return {}
    config = model[0].model.config
    return {name: getattr(config, name) for name in type(config).__annotations__ if name not in _IDLE_SETTINGS}


def model_fingerprint(model: SentenceTransformer) -> str:
    """Fingerprint of the weights that a text's vector depends on."""
    return fingerprint(model[0].model.second_stage_model if is_contextual(model) else model)


__all__ = ["VectorOrigin", "model_fingerprint", "vector_origin"]
