"""The context of a sentence-transformers model: read, set, and given to a copy of the model."""

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

from sentence_transformers import SentenceTransformer
from transformers import PreTrainedModel
from transformers.utils import logging

from ..data import Corpus
from ..modeling import CDEConfig, CDEModel, Context, ContextualModule
from ..modeling.context import as_context
from .contextualized_models import contextualize, read_context, with_module


logger = logging.get_logger(__name__)


def get_context(model: SentenceTransformer) -> Context | None:
    """
    Returns the context of a model.

    Args:
        model (`SentenceTransformer`):
            A contextualized model, a CDE checkpoint, or any other model.

    Returns:
        `Context` or `None`: The context. `None` if none was set, or if the model takes none.
    """
    found = find_contextual_module(model)
    return None if found is None else as_context(found[1].context)


def set_context(
    model: SentenceTransformer,
    corpus: Corpus | Context | None,
    *,
    size: int | None = None,
    seed: int = 0,
) -> None:
    """
    Sets the context for every text that a model encodes from now on.

    Args:
        model (`SentenceTransformer`):
            A contextualized model or a CDE checkpoint.
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str`, `Path`, `Context` or `None`):
            The corpus: a list of texts, texts by id, a dataset with a column `text`, or the path of a file. Or a
            context, such as the result of [`get_context`]. `Context()` gives embeddings without a context. `None`
            removes the context.
        size (`int`, *optional*):
            Number of documents to sample. Defaults to what the model reads: `context_size` documents for a CDE
            checkpoint, 64 for a contextualized model.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sample.
    """
    _expect_contextual_module(model)[1].set_context(read_context(corpus), size=size, seed=seed)


def find_contextual_module(model: SentenceTransformer) -> tuple[str, ContextualModule] | None:
    """Returns the module of a model that takes a context, with its name. `None` if there is none."""
    _check_loaded(model)
    found = [(name, module) for name, module in model.named_children() if isinstance(module, ContextualModule)]
    return found[0] if found else None


def find_cde_model(model: SentenceTransformer) -> CDEModel | None:
    """Returns the `CDEModel` of a CDE checkpoint. Its class may come from the checkpoint's own copy of the code."""
    _check_loaded(model)
    network = getattr(model[0], "model", None)
    is_cde = isinstance(network, PreTrainedModel) and network.config.model_type == CDEConfig.model_type
    return network if is_cde else None


def _check_loaded(model: Any) -> None:
    if isinstance(model, str | os.PathLike):
        raise TypeError(
            f"`model` must be a loaded model, got the path `{model}`. Load it with "
            f"`SentenceTransformer('{model}', trust_remote_code=True)`."
        )


def with_context(
    model: SentenceTransformer, context: Context | None, settings: Mapping[str, Any] | None = None
) -> SentenceTransformer:
    """
    Returns a copy of a model with another context. Both share their weights.

    Args:
        model (`SentenceTransformer`):
            The model, which stays unchanged. A plain model is contextualized.
        context (`Context` or `None`):
            The context. `None` for a plain model.
        settings (`Mapping[str, Any]`, *optional*):
            Settings of a contextualized model that had this context, for a plain model. See [`VectorOrigin`].

    Returns:
        `SentenceTransformer`: The model with that context.
    """
    found = find_contextual_module(model)
    if found is None:
        if context is None:
            return model
        return contextualize(model, context, frequency_scale=(settings or {}).get("frequency_scale"))
    name, module = found
    module_twin: Any = copy.copy(module)  # shallow: the weights are shared, the context is not
    twin = with_module(model, name, module_twin, type(model))
    module_twin.set_context(context)
    return twin


def with_own_context(model: SentenceTransformer, texts: Sequence[str], *, seed: int = 0) -> SentenceTransformer:
    """Returns a copy of a model with its own context or, if it takes one and has none, a sample of the texts."""
    twin = with_context(model, get_context(model))
    if find_contextual_module(twin) is not None and get_context(twin) is None:
        set_context(twin, texts, seed=seed)
        logger.info(f"Sampled a context from the corpus: {get_context(twin)}.")
    return twin


def without_context(model: SentenceTransformer) -> SentenceTransformer:
    """Returns a copy of the model without any context: a CDE checkpoint as a plain biencoder, others unchanged."""
    return model if find_contextual_module(model) is None else with_context(model, Context())


def _expect_contextual_module(model: SentenceTransformer) -> tuple[str, ContextualModule]:
    found = find_contextual_module(model)
    if found is None:
        kinds = ", ".join(type(module).__name__ for module in model.children())
        raise ValueError(
            f"This model takes no context: its modules are {kinds}. Make a contextual one: `contextualize(model, "
            "corpus)`."
        )
    return found


__all__ = [
    "find_cde_model",
    "find_contextual_module",
    "get_context",
    "set_context",
    "with_context",
    "with_own_context",
    "without_context",
]
