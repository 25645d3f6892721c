"""
The context of a sentence-transformers model: read from the model, saved, and given to a copy of the model.

There are three kinds of model. The context of a CDE checkpoint is a [`CorpusContext`], the context of a model with
context-frequency pooling is a [`FrequencyContext`], and other models have none.
"""

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers.utils import logging

from ..modeling import CorpusContext
from ..modeling.fingerprint import tensor_hash
from .contextualized_models import contextualize, with_module
from .systems import is_contextual


logger = logging.get_logger(__name__)

_FREQUENCY_KIND = "cde_frequency_context"


@dataclass(frozen=True)
class FrequencyContext:
    """
    The word statistics of a corpus, for context-frequency pooling.

    Args:
        document_counts (`torch.Tensor` of shape `(vocab_size,)`):
            Number of context documents that contain each token.
        num_documents (`int`):
            Number of context documents.
        frequency_scale (`float`):
            Share of the documents at which a token has the weight 0.5.
        documents_hash (`str` or `None`):
            Hash of the documents' texts.
        seed (`int` or `None`):
            Seed with which they were sampled.
        lexical_size (`int`):
            Width of the lexical part of the vectors, 0 for none.
        lexical_weight (`float`):
            Weight of the lexical part, relative to the dense part.
    """

    document_counts: Tensor
    num_documents: int
    frequency_scale: float
    documents_hash: str | None
    seed: int | None
    lexical_size: int
    lexical_weight: float

    @property
    def hash(self) -> str:
        """Hash of the contents, the same in every process."""
        scales = [self.num_documents, self.frequency_scale]
        if self.lexical_size > 0:
            scales += [self.lexical_size, self.lexical_weight]
        return tensor_hash(self.document_counts, torch.tensor(scales, dtype=torch.float32))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the context to one safetensors file."""
        settings = {name: value for name, value in asdict(self).items() if name != "document_counts"}
        counts = self.document_counts.cpu().contiguous()
        save_file({"document_counts": counts}, path, metadata={_FREQUENCY_KIND: json.dumps(settings)})


ModelContext = CorpusContext | FrequencyContext | None


def context_of(model: SentenceTransformer) -> ModelContext:
    """Returns the context of a model, `None` if it has none or is a plain model."""
    if is_contextual(model):
        return model[0].context
    found = _frequency_pooling(model)
    if found is None or found[1].document_counts is None:
        return None
    return FrequencyContext(**{field.name: getattr(found[1], field.name) for field in fields(FrequencyContext)})


def draw_context(model: SentenceTransformer, documents: Sequence[str], *, seed: int = 0) -> ModelContext:
    """Samples a context from a corpus; `None` for a plain model. The model stays unchanged."""
    if is_contextual(model):
        return model[0].encode_context(documents, seed=seed)
    if _frequency_pooling(model) is None:
        return None
    twin = with_module(model, *_new_pooling(model))
    _frequency_pooling(twin)[1].set_context(documents, seed=seed)
    return context_of(twin)


def with_context(model: SentenceTransformer, context: ModelContext) -> SentenceTransformer:
    """
    Returns a copy of a model with another context. Both share their weights.

    Args:
        model (`SentenceTransformer`):
            The model, which stays unchanged.
        context (`CorpusContext`, `FrequencyContext` or `None`):
            A context for this kind of model; `None` for a plain model. A plain model with mean pooling also takes a
            `FrequencyContext`.

    Returns:
        `SentenceTransformer`: The model with that context.
    """
    if is_contextual(model) and hasattr(context, "second_stage_fingerprint"):
        module = copy.copy(model[0])  # shallow: the weights are shared, the context is not
        module.set_context(context)
        return with_module(model, next(iter(model._modules)), module)
    if isinstance(context, FrequencyContext) and not is_contextual(model):
        if _frequency_pooling(model) is None:
            model = contextualize(model, None)  # any mean-pooling model takes it
        name, pooling = _new_pooling(model, context)
        twin = with_module(model, name, pooling)
        pooling.set_counts(context.document_counts.to(model.device))
        return twin
    if context is None and not is_contextual(model):
        return model
    kinds = ", ".join(type(module).__name__ for module in model.children())
    raise ValueError(
        f"A model with the modules {kinds} got a context of the type `{type(context).__name__}`, which it does not "
        "read. Give the model that the context was made with."
    )


def with_own_context(model: SentenceTransformer, texts: Sequence[str], *, seed: int = 0) -> SentenceTransformer:
    """Returns a copy of a model with its own context or, if it is contextual and has none, a sample of the texts."""
    context = context_of(model)
    if context is None:
        context = draw_context(model, texts, seed=seed)
        if context is not None:
            logger.info(f"Sampled a context of {context_size(context)} documents from the corpus.")
    return with_context(model, context)


def without_context(model: SentenceTransformer) -> SentenceTransformer:
    """Returns the model without any context: a CDE checkpoint as a plain biencoder, others with the plain mean."""
    if is_contextual(model):
        return with_context(model, CorpusContext.null())
    if _frequency_pooling(model) is None:
        return model
    return with_module(model, *_new_pooling(model))


def context_size(context: ModelContext) -> int:
    """Number of documents in a context."""
    if isinstance(context, FrequencyContext):
        return context.num_documents
    return 0 if context is None or context.embeddings is None else len(context.embeddings)


def load_context(path: str | os.PathLike) -> ModelContext:
    """Reads a saved context of either class."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"`{path}` is not a complete safetensors file ({error}). Write it again.") from error
    if _FREQUENCY_KIND not in metadata:
        return CorpusContext.load(Path(path))
    return FrequencyContext(load_file(path)["document_counts"], **json.loads(metadata[_FREQUENCY_KIND]))


def _frequency_pooling(model: SentenceTransformer) -> tuple[str, nn.Module] | None:
    # By name, because a checkpoint's copy of the code and this package each define a `FrequencyPooling`.
    found = [item for item in model.named_children() if type(item[1]).__name__ == "FrequencyPooling"]
    return found[0] if found else None


def _new_pooling(model: SentenceTransformer, context: FrequencyContext | None = None) -> tuple[str, nn.Module]:
    name, pooling = _frequency_pooling(model)
    names = ["frequency_scale", "lexical_size", "lexical_weight"]
    if context is not None:
        names += ["num_documents", "documents_hash", "seed"]
    settings = {name: getattr(pooling if context is None else context, name) for name in names}
    return name, type(pooling)(pooling.embedding_dimension, include_prompt=pooling.include_prompt, **settings)


__all__ = [
    "FrequencyContext",
    "ModelContext",
    "context_of",
    "context_size",
    "draw_context",
    "load_context",
    "with_context",
    "with_own_context",
    "without_context",
]
