"""
Context-frequency pooling for sentence-transformers: a mean that down-weights tokens that are common in a corpus.

1. `set_context` samples documents of the corpus and counts, for each token, how many of them contain it.
2. `forward` takes the weighted mean of a text's tokens. A token in a share `p` of the documents has weight
   `a / (a + p)`.

Without a context it is the plain mean. A saved module carries a copy of this file and of the files it imports.
"""

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.base import BaseModel
from sentence_transformers.base.modules import Module
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .context import (
    CONTEXT_FILE,
    Context,
    TakesContext,
    sample_documents,
    save_in_folder,
    ship_code,
)
from .pooling import DEFAULT_FREQUENCY_SCALE, count_token_frequencies, num_token_ids, pooling_weights


MAX_DOCUMENTS = 50_000

_DOCUMENTS_AT_ONCE = 256


class ModuleWithContext(TakesContext, Module):
    """Base of the modules with a folder of their own, which has their configuration and context."""

    context: Context | None
    _model: tuple[BaseModel, ...] = ()  # a tuple, so that it does not become a submodule

    def on_model_ready(self, model: BaseModel) -> None:
        """Called by the model that contains this module."""
        self._model = (model,)

    @property
    def has_context(self) -> bool:
        """Whether a context is set. Saved, so that a lost file is noticed."""
        return self.context is not None

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Saves configuration and context to a folder, and the code that loads them to its parent folder."""
        self.save_config(output_path)
        save_in_folder(self._saved_context(), output_path)
        ship_code(inspect.getfile(type(self)), Path(output_path).parent)

    @classmethod
    def load(  # type: ignore[override]  # `SentenceTransformer` passes the rest by name
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> Self:
        """Loads what `save` saved. Called by `SentenceTransformer`."""
        names = ("token", "cache_folder", "revision", "local_files_only")
        hub_kwargs = {name: kwargs[name] for name in names if name in kwargs}
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub_kwargs)
        has_context = config.pop("has_context")
        module = cls(**config)
        if has_context:
            path = cls.load_file_path(model_name_or_path, CONTEXT_FILE, subfolder=subfolder, **hub_kwargs)
            if path is None:
                raise FileNotFoundError(
                    f"`{model_name_or_path}` was saved with a context, but has no file `{subfolder}/{CONTEXT_FILE}`. "
                    "Save the model again."
                )
            module.set_context(Context.load(path))
        return module

    def _saved_context(self) -> Context | None:
        """The parts of the context that this module saves."""
        raise NotImplementedError


class FrequencyPooling(ModuleWithContext, Pooling):
    """
    Mean pooling weighted by the word statistics of a corpus. [`contextualize`] replaces the mean `Pooling` of a
    sentence-transformers model by it.

    Special tokens and prompts occur in every text, so their tokens have weight `a / (a + 1)`. If the model excludes
    prompts from its pooling (`include_prompt=False`), they have weight 0.

    Args:
        embedding_dimension (`int`):
            Size of the token embeddings.
        pooling_mode (`str`, *optional*, defaults to `"mean"`):
            Only `"mean"` is supported.
        include_prompt (`bool`, *optional*, defaults to `True`):
            Whether to include the tokens of a prompt.
        frequency_scale (`float`, *optional*, defaults to `0.2`):
            The scale `a`: the share of documents at which a token has weight one half.
    """

    config_keys = [*Pooling.config_keys, "frequency_scale", "has_context"]

    def __init__(
        self,
        embedding_dimension: int,
        pooling_mode: str = "mean",
        include_prompt: bool = True,
        *,
        frequency_scale: float = DEFAULT_FREQUENCY_SCALE,
    ):
        super().__init__(embedding_dimension, pooling_mode=pooling_mode, include_prompt=include_prompt)
        if self.pooling_mode != "mean":
            raise ValueError(
                f"Context-frequency pooling needs mean pooling, got `pooling_mode={pooling_mode!r}`. Use a model with "
                "mean pooling."
            )
        if not frequency_scale > 0:
            raise ValueError(f"`frequency_scale` must be positive, got {frequency_scale}. The default is 0.2.")
        self.frequency_scale = frequency_scale
        self.context: Context | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the vectors depend on besides weights, tokenizer and context."""
        return {name: value for name, value in self.get_config_dict().items() if name != "has_context"}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FrequencyPooling":
        """Moves the context with the model."""
        super()._apply(fn, recurse)
        context = self.context
        if context is not None and context.token_frequencies is not None:
            probe = torch.empty(0, dtype=torch.long, device=context.token_frequencies.device)  # is never cast
            moved = context.to(fn(probe).device)
            if moved is not context:  # otherwise another thread may set a context in the meantime
                self.context = moved
        return self

    def forward(self, features: dict[str, Tensor | Any], **kwargs: Any) -> dict[str, Tensor | Any]:
        """Adds `sentence_embedding` of shape `(batch_size, dim)` to the features: weighted means of the tokens."""
        # Read once: another thread may set another context in the meantime.
        context = self.context or Context()
        features["context"] = context  # for a corpus part
        frequencies = context.token_frequencies
        if frequencies is None:
            return super().forward(features, **kwargs)
        token_embeddings = features["token_embeddings"]  # (batch_size, sequence_length, dim)
        weights = self._token_weights(features, frequencies).unsqueeze(-1)
        # Mean of the weighted tokens divided by mean of the weights. The parent class excludes padding and prompts.
        weighted = torch.cat([token_embeddings.float() * weights, weights], dim=-1)
        means = super().forward({**features, "token_embeddings": weighted}, **kwargs)["sentence_embedding"]
        mean_weights = means[:, -1:].clamp(min=torch.finfo(torch.float32).tiny)  # 0 if there is only a prompt
        features["sentence_embedding"] = (means[:, :-1] / mean_weights).to(token_embeddings.dtype)
        return features

    def _token_weights(self, features: dict[str, Tensor | Any], frequencies: Tensor) -> Tensor:
        input_ids = features["input_ids"]
        weights = pooling_weights(
            input_ids,
            torch.ones_like(input_ids),
            token_frequencies=frequencies,
            frequency_scale=self.frequency_scale,
        )
        if "prompt_length" not in features:
            return weights
        return weights.masked_fill(_is_prompt(features), 1 / (1 + 1 / self.frequency_scale))

    def _make_context(self, documents: list[str], size: int | None, seed: int) -> Context:
        if not self._model:
            raise ValueError(
                "The context documents cannot be tokenized because this pooling is not part of a model yet. Use "
                "`contextualize(model, documents)`, or set the context after `SentenceTransformer(modules=...)`."
            )
        model = self._model[0]
        sample = sample_documents(documents, MAX_DOCUMENTS if size is None else size, seed=seed)
        vocab_size = num_token_ids(model.tokenizer)
        counts = torch.zeros(vocab_size)
        is_short = len(sample) <= _DOCUMENTS_AT_ONCE
        for start in logging.tqdm(range(0, len(sample), _DOCUMENTS_AT_ONCE), "Counting tokens", disable=is_short):
            batch = sample[start : start + _DOCUMENTS_AT_ONCE]
            encoded = model.tokenizer(batch, padding=True, truncation=True, max_length=model.max_seq_length)
            input_ids, attention_mask = (torch.tensor(encoded[name]) for name in ("input_ids", "attention_mask"))
            counts += count_token_frequencies(input_ids, attention_mask, vocab_size) * len(batch)
        return Context(
            token_frequencies=counts.round() / len(sample),
            num_documents=len(sample),
            fingerprint=tokenizer_fingerprint(model.tokenizer),
        )

    def _use_context(self, context: Context | None) -> None:
        if context is not None:
            self._check_context(context)
            context = context.to(self._model[0].device) if self._model else context
        self.context = context

    def _saved_context(self) -> Context | None:
        return None if self.context is None else replace(self.context, terms=None)  # a corpus part saves its own

    def _check_context(self, context: Context) -> None:
        if not self._model:  # loaded together with its model
            return
        tokenizer = self._model[0].tokenizer
        frequencies = context.token_frequencies
        if frequencies is None and context.embeddings is not None:
            raise ValueError(
                "The context has vectors of documents but no token frequencies, which this pooling needs. Give the "
                "documents, or a context of a contextualized model."
            )
        if frequencies is not None and len(frequencies) != num_token_ids(tokenizer):
            raise ValueError(
                f"The context has frequencies of {len(frequencies)} tokens, but the vocabulary has "
                f"{num_token_ids(tokenizer)}. It was made by another model or with another tokenizer: give that one."
            )
        if context.fingerprint is not None and context.fingerprint != tokenizer_fingerprint(tokenizer):
            raise ValueError(
                "The context was made by another model or with another tokenizer, so its frequencies belong to other "
                "tokens. Give the model that it was made with, or the documents."
            )


_known_fingerprints: dict[bytes, str] = {}  # by a hash of all settings, as parsing a vocabulary is slow


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of what a tokenizer makes of texts, whatever it truncates and pads to at the moment."""
    if not tokenizer.is_fast:
        return _hash_settings(tokenizer.get_vocab())
    text = tokenizer.backend_tokenizer.to_str()
    key = hashlib.blake2b(text.encode()).digest()
    if key not in _known_fingerprints:
        settings = {name: value for name, value in json.loads(text).items() if name not in ("truncation", "padding")}
        _known_fingerprints[key] = _hash_settings(settings)
    return _known_fingerprints[key]


def _hash_settings(settings: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def _is_prompt(features: dict[str, Tensor | Any]) -> Tensor:
    """Whether each token belongs to the prompt, with the shape of `input_ids`."""
    device = features["input_ids"].device
    length = torch.as_tensor(features["prompt_length"], device=device).view(-1, 1)  # one number, or one per text
    index = torch.arange(features["input_ids"].shape[1], device=device)
    if "cu_seq_lens_q" in features:  # all texts in one row, without padding, with the same prompt
        length = length[:1]
        borders = features["cu_seq_lens_q"]
        starts = torch.repeat_interleave(borders[:-1], borders.diff()).unsqueeze(0)
    else:
        starts = features["attention_mask"].argmax(dim=1, keepdim=True)  # after the padding on the left
    return index - starts < length


__all__ = ["MAX_DOCUMENTS", "FrequencyPooling", "ModuleWithContext", "tokenizer_fingerprint"]
