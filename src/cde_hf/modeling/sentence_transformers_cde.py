"""The model as a sentence-transformers module. Its context may be part of the checkpoint."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from .configuration_cde import CDEConfig
from .context import (
    CONTEXT_FILE,
    Context,
    TakesContext,
    check_text,
    fingerprint,
    sample_documents,
    save_in_folder,
    ship_code,
    tensor_hash,
    weight_versions,
)
from .modeling_cde import CDEModel


logger = logging.get_logger(__name__)

DEFAULT_MAX_LENGTH = 512
DEFAULT_DOCUMENT_PROMPT = "search_document: "

# Fields of the configuration that no vector depends on, or that show in the weights.
_IDLE_SETTINGS = (
    "first_stage_config",
    "second_stage_config",
    "has_first_stage",
    "sequence_dropout_prob",
    "initializer_range",
)


class CDETransformer(TakesContext, InputModule):
    """
    Sentence-transformers module that wraps a [`CDEModel`].

    The output of `encode` depends on the context:

    - After `set_context(documents)`, or if the checkpoint was saved with its context: contextual embeddings.
    - After `set_context(Context())`: embeddings without a context, as of a plain biencoder.
    - With `encode(texts, dataset_embeddings=vectors)`: embeddings given these first-stage vectors as context.
    - Otherwise: the first-stage vectors of the texts, for use as `dataset_embeddings`.

    Args:
        model (`CDEModel`):
            The model.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        max_seq_length (`int`, *optional*, defaults to `512`):
            Maximum number of tokens of a text.
        document_prompt (`str`, *optional*, defaults to `"search_document: "`):
            Prompt of the context documents.
        context (`Context`, *optional*):
            The initial context.
    """

    config_file_name = "sentence_transformers_cde_config.json"
    config_keys = ["max_seq_length", "document_prompt"]
    forward_kwargs = {"dataset_embeddings"}
    save_in_root = True

    tokenizer: PreTrainedTokenizerBase

    def __init__(
        self,
        model: CDEModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_seq_length: int = DEFAULT_MAX_LENGTH,
        document_prompt: str = DEFAULT_DOCUMENT_PROMPT,
        context: Context | None = None,
    ):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.document_prompt = document_prompt
        self.read_terms: Callable[..., dict[str, Any]] | None = None  # set by a corpus part, which reads whole texts
        self.context: Context | None = None
        self._last_context: tuple[Any, Context] | None = None
        if context is not None:
            self.set_context(context)

    auto_model = property(lambda self: self.model, doc="The model, by the name in sentence-transformers' own modules.")

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the model's configuration that differ from their defaults and do not show in the weights."""
        config = self.model.config
        names = [name for name in type(config).__annotations__ if name not in _IDLE_SETTINGS]
        changed = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(CDEConfig, name)}
        if self.document_prompt != DEFAULT_DOCUMENT_PROMPT:
            changed["context_document_prompt"] = self.document_prompt
        return changed

    def _use_context(self, context: Context | None) -> None:
        self.context = None if context is None else self.model.prepare_context(context)

    def _make_context(self, documents: list[str], size: int | None, seed: int) -> Context:
        """
        Samples and encodes the context of a corpus.

        If the corpus has fewer than `context_size` documents, the null embedding fills the rest. A model without a
        null embedding repeats documents instead.
        """
        config = self.model.config
        size = config.context_size if size is None else min(size, config.context_size)
        chosen = fill_documents(
            sample_documents(documents, size, seed=seed),
            config.context_size if not config.has_null_embedding else 0,
            seed=seed,
        )
        # Sorting by length reduces padding. The order of a set does not matter.
        if not config.context_as_sequence:
            chosen = sorted(chosen, key=len)
        features = self.preprocess(chosen, prompt=self.document_prompt)
        device = self.model.device
        return self.model.encode_context(features["input_ids"].to(device), features["attention_mask"].to(device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CDETransformer":
        """Moves and casts the context with the model."""
        super()._apply(fn, recurse)
        context = self.context
        moved = None if context is None else context.to(self.model.device, self.model.dtype)
        if moved is not context:  # otherwise another thread may set a context in the meantime
            self.context = moved
        return self

    def preprocess(  # type: ignore[override]  # no images, audio or pairs
        self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Tokenizes texts. Called by `SentenceTransformer`, which passes all arguments of `encode` on."""
        for text in inputs:
            check_text(text, "`inputs`")
        texts = [(prompt or "") + text.strip() for text in inputs]
        features: Any = self.tokenizer(
            texts,
            padding=True,
            padding_side="right",  # whatever the tokenizer was saved with
            truncation=True,
            max_length=self.max_seq_length,
            return_tensors="pt",
        )
        features = {name: features[name] for name in ("input_ids", "attention_mask")}
        if self.read_terms is not None:
            features |= self.read_terms(self.tokenizer, inputs, prompt=prompt, task=kwargs.get("task"))
        return features

    def forward(
        self, features: dict[str, Any], dataset_embeddings: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Adds `sentence_embedding` of shape `(batch_size, hidden_size)` to the features."""
        input_ids, attention_mask = features["input_ids"], features["attention_mask"]
        context = self.context
        if dataset_embeddings is not None:
            if context is not None:
                raise ValueError(
                    "This model has a context of its own, but `dataset_embeddings` are another one. Call "
                    "`set_context(None)` first, or omit `dataset_embeddings`."
                )
            context = self._context_of(dataset_embeddings)
        if context is not None:
            output = self.model(input_ids, attention_mask, context=context, return_dict=True)
            features["sentence_embedding"] = output.embeddings
            features["context"] = context  # for a corpus part
        else:
            logger.warning_once(
                "No context is set, so `encode` returns first-stage vectors, for use as `dataset_embeddings`. For "
                "embeddings, set the documents of the corpus as context, or `Context()` for embeddings without one: "
                "`cde_hf.set_context(model, documents)`."
            )
            output = self.model(context_input_ids=input_ids, context_attention_mask=attention_mask, return_dict=True)
            features["sentence_embedding"] = output.context_embeddings
            features["is_first_stage"] = True
        return features

    def get_embedding_dimension(self) -> int:
        """Size of the embeddings."""
        return self.model.config.hidden_size

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Saves model, tokenizer, settings and the context, if there is one. Called by `SentenceTransformer`."""
        if self.context is not None:
            self.model.prepare_context(self.context)  # refuses a context of other weights
        self.model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)
        self.save_config(output_path)
        ship_code(__file__, Path(output_path))
        # A corpus part saves its own terms.
        save_in_folder(None if self.context is None else replace(self.context, terms=None), output_path)

    @classmethod
    def load(  # type: ignore[override]  # `SentenceTransformer` passes the rest by name
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> "CDETransformer":
        """Loads what [`CDETransformer.save`] saved. Called by `SentenceTransformer`."""
        hub_names = ("token", "cache_folder", "revision", "local_files_only")
        hub_kwargs = {name: kwargs[name] for name in hub_names if name in kwargs}
        transformers_kwargs = {"cache_dir" if name == "cache_folder" else name: v for name, v in hub_kwargs.items()}
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub_kwargs)
        model_kwargs = {
            name: value for name, value in (kwargs.get("model_kwargs") or {}).items() if name != "trust_remote_code"
        }
        model = CDEModel.from_pretrained(
            model_name_or_path, subfolder=subfolder, **transformers_kwargs, **model_kwargs
        )
        # Without a value it asks in the terminal where this package is not installed.
        transformers_kwargs["trust_remote_code"] = kwargs.get("trust_remote_code", False)
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path, subfolder=subfolder, **transformers_kwargs)
        context_file = cls.load_file_path(model_name_or_path, CONTEXT_FILE, subfolder=subfolder, **hub_kwargs)
        context = None
        if context_file is not None:
            # Model and context were saved together, so they match even if the weights are loaded in another precision.
            context = replace(Context.load(context_file), fingerprint=fingerprint(model.second_stage_model))
        return cls(model, tokenizer, **config, context=context)

    def _context_of(self, dataset_embeddings: Tensor) -> Context:
        """Context of bare first-stage vectors. Its context block is cached for the next batch."""
        if self.model.config.counts_tokens:
            logger.warning_once(
                "`dataset_embeddings` have no token frequencies, so the pooling is the plain mean. Set the documents "
                "as context instead: `cde_hf.set_context(model, documents)`."
            )
        vectors = torch.as_tensor(dataset_embeddings)
        key = (tensor_hash(vectors), weight_versions(self.model), self.model.device)
        last = self._last_context
        if last is None or last[0] != key:
            last = self._last_context = (key, self.model.prepare_context(Context(vectors)))
        return last[1]


def fill_documents(documents: list[str], size: int, *, seed: int = 0) -> list[str]:
    """
    Repeats documents until there are `size`, as evenly as possible, for a model without a null embedding.

    Example:

    ```python
    >>> sorted(fill_documents(["a", "b"], 4))
    ['a', 'a', 'b', 'b']

    ```
    """
    num_missing = size - len(documents)
    if num_missing <= 0:
        return documents
    logger.info(f"The corpus has {len(documents)} documents, repeated to fill the {size} that this model needs.")
    times, rest = divmod(num_missing, len(documents))
    return [*documents, *documents * times, *random.Random(seed).sample(documents, rest)]


__all__ = ["CDETransformer"]
