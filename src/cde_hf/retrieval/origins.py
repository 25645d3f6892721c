"""Where vectors come from: the model, its context and its settings. Vectors of two origins cannot be compared."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sentence_transformers import SentenceTransformer

from ..modeling.fingerprint import fingerprint
from .model_contexts import context_of
from .systems import is_contextual


# Of a CDE configuration: what no vector depends on, or what shows in the weights.
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
    What decides the vector of a text, other than the text.

    Args:
        model (`str`):
            Fingerprint of the weights; of a CDE checkpoint those of the second stage, for the first one shows in the
            context alone.
        context (`str` or `None`):
            Hash of the context. `None` for a model that has none.
        max_length (`int`, *optional*):
            Number of tokens that are read of a text.
        query_prompt (`str`, *optional*, defaults to `""`):
            Put before queries.
        document_prompt (`str`, *optional*, defaults to `""`):
            Put before documents.
        truncate_dim (`int`, *optional*):
            Number of dimensions that are kept.
        similarity (`str`, *optional*, defaults to `"cosine"`):
            `"cosine"`, in which case the vectors have length 1, or `"dot"`.
        settings (`dict[str, Any]`, *optional*):
            What a CDE checkpoint's configuration says beside its backbones, such as attention, pooling and lexical
            part: it can be changed at the same weights. Defaults to nothing; other models have no such settings.
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
        """The fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "VectorOrigin":
        """The origin that [`VectorOrigin.to_dict`] wrote. What an earlier version wrote beside is left out."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})

    def differences(self, other: "VectorOrigin") -> str:
        """What is not the same, in words. Empty if nothing is."""
        if bool(self.settings) != bool(other.settings):
            return "settings that only one of both has, as between a CDE checkpoint and another model or version"
        mine, theirs = ({**origin.to_dict(), **origin.settings} for origin in (self, other))
        return ", ".join(
            f"{name} {theirs.get(name)!r} and not {mine.get(name)!r}"
            for name in {**mine, **theirs}
            if name != "settings" and mine.get(name) != theirs.get(name)
        )


def vector_origin(model: SentenceTransformer) -> VectorOrigin:
    """
    The origin of the vectors that a model makes as it is now.

    Args:
        model (`SentenceTransformer`):
            A plain model, one with context-frequency pooling, or a CDE checkpoint with a context.

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
    """Fingerprint of the weights that decide a text's vector."""
    return fingerprint(model[0].model.second_stage_model if is_contextual(model) else model)


__all__ = ["VectorOrigin", "model_fingerprint", "vector_origin"]
