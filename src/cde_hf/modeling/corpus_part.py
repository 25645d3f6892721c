"""
The corpus part of an embedding: what the words of a text mean in this corpus, beside what the encoder makes of it.

1. `set_context` fits term vectors to the corpus (see `term_vectors.py`).
2. It calibrates: the weight of the part is proportional to the standard deviation of the encoder's cosines between
   documents of the corpus. Encoders differ in how far their cosines spread.
3. `forward` appends the term vector of the text to the dense vector, so that one inner product is the sum of both
   cosines, the second one weighted. The least important direction stands last, so `truncate_dim` cuts it first.
4. A text without any term of the corpus has no part. A dimension of its own keeps the norm of such a document the same
   as that of the others, so that it does not gain under cosine similarity. Queries have 0 there.

A saved module carries a copy of this file and of the files it imports.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.base import BaseModel
from sentence_transformers.base.modules import Transformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .context import Context, ContextualModule, check_text, fingerprint, sample_documents
from .frequency_pooling import MAX_DOCUMENTS, ModuleWithContext, tokenizer_fingerprint
from .term_vectors import count_input_ids, embed_terms, fit_terms, term_features


WEIGHT_PER_SPREAD = 2.0
NUM_CALIBRATION_DOCUMENTS = 128


class WholeTextTransformer(Transformer):
    """A `Transformer` that also counts the terms of whole texts, before it truncates them, for a [`CorpusPart`]."""

    read_terms = staticmethod(term_features)

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, processing_kwargs: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Tokenizes texts. Called by `SentenceTransformer`."""
        for text in inputs:
            if not isinstance(text, dict | tuple):  # messages and pairs are the encoder's own business
                check_text(text, "`inputs`")
        features = super().preprocess(inputs, prompt=prompt, processing_kwargs=processing_kwargs, **kwargs)
        are_texts = bool(inputs) and all(isinstance(text, str) for text in inputs)
        if are_texts and not self.training:
            tokenizer = cast(PreTrainedTokenizerBase, self.tokenizer)
            features |= self.read_terms(tokenizer, inputs, prompt=prompt, task=kwargs.get("task"))
        return features


class CorpusPart(ModuleWithContext):
    """
    Sentence-transformers module that appends the corpus part to an embedding. Added by [`contextualize`].

    Without a context the part is zero, and so it is in training. `encode_query`, or the prompt of queries, and other
    ways to encode differ only for a text without any known term.

    Args:
        embedding_dimension (`int`):
            Size of the dense part.
        corpus_dim (`int`):
            Size of the corpus part.
    """

    config_keys = ["embedding_dimension", "corpus_dim", "has_context"]

    def __init__(self, embedding_dimension: int, corpus_dim: int):
        super().__init__()
        if corpus_dim < 2:
            raise ValueError(f"`corpus_dim` must be 0, for no corpus part, or at least 2, got {corpus_dim}.")
        self.embedding_dimension = embedding_dimension
        self.corpus_dim = corpus_dim
        self._own_context: Context | None = None

    def on_model_ready(self, model: BaseModel) -> None:
        """Called by the model that contains this module. The contexts of its modules become one."""
        super().on_model_ready(model)
        own, self._own_context = self._own_context, None
        input_module: Any = model[0]
        if hasattr(input_module, "read_terms"):
            input_module.read_terms = term_features
        if own is None:
            return
        inner = self._inner_module()
        if inner is None:
            self._own_context = own
        elif inner.context is not None:
            inner.context = replace(inner.context, terms=own.terms, num_documents=own.num_documents)

    def _inner_module(self) -> ContextualModule | None:
        """The module in front that takes a context, such as context-frequency pooling. It then holds the context."""
        children = self._model[0].children() if self._model else ()
        return next((each for each in children if each is not self and isinstance(each, ContextualModule)), None)

    @property
    def context(self) -> Context | None:  # type: ignore[override]  # read only: it is set by `set_context`
        """The context, of this module and of the module in front."""
        inner = self._inner_module()
        return self._own_context if inner is None else inner.context

    @property
    def settings(self) -> dict[str, Any]:
        """What the vectors depend on besides weights, tokenizer and context."""
        return {"corpus_dim": self.corpus_dim}

    def _use_context(self, context: Context | None) -> None:
        if context is not None:
            self._check_context(context)
        inner = self._inner_module()
        if inner is not None:
            inner.set_context(context)
        elif context is not None and self._model:
            self._own_context = context.to(self._model[0].device)
        else:
            self._own_context = context

    def _make_context(self, documents: list[str], size: int | None, seed: int) -> Context:
        if not self._model:
            raise ValueError(
                "The corpus part cannot be fitted because it is not part of a model yet. Use `contextualize(model, "
                "documents)`, or set the context after `SentenceTransformer(modules=...)`."
            )
        model: Any = self._model[0]
        documents = sample_documents(documents, MAX_DOCUMENTS if size is None else size, seed=seed)
        # The model up to here, with the new context, beside the model that other threads may be using.
        modules: list[Any] = [module for module in model.children() if module is not self]
        inner = self._inner_module()
        if inner is not None:
            twin = copy.copy(inner)
            modules[modules.index(inner)] = twin
            inner = twin
        dense_model = SentenceTransformer(
            modules=modules, device=str(model.device), prompts=model.prompts, trust_remote_code=True
        )
        context = Context()
        if inner is not None:
            inner.set_context(documents, seed=seed)
            context = inner.context or context
        terms = fit_terms(model.tokenizer, documents, num_directions=self.corpus_dim - 1, seed=seed)
        if terms is not None:
            sample = sample_documents(documents, NUM_CALIBRATION_DOCUMENTS, seed=seed)
            weight = WEIGHT_PER_SPREAD * _spread_of_cosines(dense_model, sample)
            terms = replace(terms, weight=weight, encoder=_encoder_fingerprint(model))
        return replace(context, terms=terms, num_documents=len(documents))

    def _check_context(self, context: Context) -> None:
        if context.terms is None:
            return
        num_directions = context.terms.vectors.shape[1]
        if num_directions >= self.corpus_dim:
            raise ValueError(
                f"The context has {num_directions} directions, but `corpus_dim={self.corpus_dim}` leaves room for "
                f"{self.corpus_dim - 1}. Use the `corpus_dim` of the model that made it."
            )
        if self._model and context.terms.encoder not in (None, _encoder_fingerprint(self._model[0])):
            raise ValueError(
                "The corpus part of this context was fitted and calibrated for another model or tokenizer. Give the "
                "documents instead: `set_context(model, corpus)`."
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CorpusPart":
        """Moves the context with the model."""
        super()._apply(fn, recurse)
        context = self._own_context
        if context is not None and context.terms is not None:
            moved = context.to(fn(context.terms.ids[:0]).device)  # integers are never cast
            if moved is not context:  # otherwise another thread may set a context in the meantime
                self._own_context = moved
        return self

    def forward(self, features: dict[str, Tensor | Any], **kwargs: Any) -> dict[str, Tensor | Any]:
        """Replaces `sentence_embedding` by vectors of shape `(batch_size, embedding_dimension + corpus_dim)`."""
        if features.get("is_first_stage", False):  # vectors of context documents, not embeddings
            return features
        # What the module in front has read: another thread may have set another context in the meantime.
        context = cast(Context | None, features.get("context", self._own_context))
        dense = F.normalize(features["sentence_embedding"].float(), dim=-1)
        if context is None or context.terms is None or self.training:
            part = torch.zeros(dense.shape[0], self.corpus_dim, device=dense.device)
        else:
            term_ids, term_counts = self._terms_of(features)
            part = embed_terms(context.terms, term_ids, term_counts)
            has_no_part = 1 - part.norm(dim=1, keepdim=True).round()  # 1 for a text without known terms, otherwise 0
            if self._are_queries(features):
                has_no_part = torch.zeros_like(has_no_part)
            part = F.pad(torch.cat([has_no_part, part], dim=1), (0, self.corpus_dim - part.shape[1] - 1))
            weight = context.terms.weight
            dense, part = dense * math.sqrt(1 / (1 + weight)), part * math.sqrt(weight / (1 + weight))
        features["sentence_embedding"] = torch.cat([dense, part], dim=-1).to(features["sentence_embedding"].dtype)
        return features

    def _terms_of(self, features: dict[str, Tensor | Any]) -> tuple[Tensor, Tensor]:
        """Terms and their counts: of whole texts, or of what the encoder reads if the input module has not counted."""
        if "term_ids" in features:
            return features["term_ids"], features["term_counts"]
        input_ids = features["input_ids"]
        special_ids = torch.tensor(self._model[0].tokenizer.all_special_ids, device=input_ids.device)
        is_special = (input_ids.unsqueeze(-1) == special_ids).any(dim=-1)
        return count_input_ids(input_ids, features["attention_mask"].bool() & ~is_special)

    def _are_queries(self, features: dict[str, Tensor | Any]) -> bool:
        prompt = features.get("term_prompt")
        is_query_prompt = bool(prompt) and prompt == self._model[0].prompts.get("query")
        return features.get("term_task") == "query" or is_query_prompt

    def get_embedding_dimension(self) -> int:
        """Size of the embeddings."""
        return self.embedding_dimension + self.corpus_dim

    def _saved_context(self) -> Context | None:
        context = self.context
        return None if context is None else Context(terms=context.terms, num_documents=context.num_documents)


def _spread_of_cosines(model: SentenceTransformer, documents: list[str]) -> float:
    """Standard deviation of the cosines between documents."""
    vectors = model.encode_document(
        documents, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
    ).float()
    cosines = (vectors @ vectors.T)[tuple(torch.triu_indices(len(vectors), len(vectors), 1, device=vectors.device))]
    return float(cosines.std(correction=0))


def _encoder_fingerprint(model: BaseModel) -> str:
    return f"{fingerprint(model)}-{tokenizer_fingerprint(model.tokenizer)}"


__all__ = ["CorpusPart", "WholeTextTransformer"]
