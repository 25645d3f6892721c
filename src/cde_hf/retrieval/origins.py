"""The origin of vectors: model, context and settings. Vectors of two origins cannot be compared."""

import inspect
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sentence_transformers import SentenceTransformer

from ..contextual_models import find_cde_model, get_context
from ..modeling import ContextualModule
from ..modeling.context import fingerprint, tokenizer_fingerprint


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


__all__ = ["VectorOrigin", "vector_origin"]
