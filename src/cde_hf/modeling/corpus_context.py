"""The context of a corpus: vectors of sampled documents, their token frequencies and the cached context block."""

import json
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import logging

from .fingerprint import tensor_hash


logger = logging.get_logger(__name__)

T = TypeVar("T")

_CONTEXT_KIND = "cde_corpus_context"


@dataclass(frozen=True)
class ContextBlock:
    """
    The keys and values of a context in each layer, computed once and reused for every text in prefix attention.

    Args:
        keys_values (`tuple`):
            One pair of tensors of shape `(1, num_heads, num_block_tokens, head_dim)` per layer.
        token_frequencies (`torch.Tensor` of shape `(vocab_size,)`, *optional*):
            Share of the context documents that contain each token, for the pooling and the lexical part.
        model_fingerprint (`str`, *optional*):
            Fingerprint of the second stage that made the block. `None` in a training step, where it is not checked.
    """

    keys_values: tuple[tuple[Tensor, Tensor], ...]
    token_frequencies: Tensor | None = None
    model_fingerprint: str | None = None

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "ContextBlock":
        """A copy on another device or in another floating point type. Token frequencies stay in float32."""
        keys_values = tuple(
            (key.to(device=device, dtype=dtype), value.to(device=device, dtype=dtype))
            for key, value in self.keys_values
        )
        return replace(self, keys_values=keys_values, token_frequencies=_move(self.token_frequencies, device))


@dataclass(frozen=True)
class CorpusContext:
    """
    What a model knows about a corpus. It is computed once, reused for every text, and can be saved.

    Args:
        embeddings (`torch.Tensor` of shape `(num_documents, hidden_size)`, *optional*):
            First-stage vectors of the context documents. `None` means no context.
        token_frequencies (`torch.Tensor` of shape `(vocab_size,)`, *optional*):
            Share of the context documents that contain each token.
        first_stage_fingerprint (`str`, *optional*):
            Fingerprint of the first stage that made the vectors.
        second_stage_fingerprint (`str`, *optional*):
            Fingerprint of the second stage that reads them.
        block (`ContextBlock`, *optional*):
            The cached context block of prefix attention.

    Example:

    ```python
    >>> CorpusContext.null().embeddings is None
    True

    ```
    """

    embeddings: Tensor | None = None
    token_frequencies: Tensor | None = None
    first_stage_fingerprint: str | None = None
    second_stage_fingerprint: str | None = None
    block: ContextBlock | None = None

    @classmethod
    def null(cls) -> "CorpusContext":
        """An empty context, with which the model is a plain biencoder."""
        return cls()

    @property
    def hash(self) -> str:
        """A short hash of the contents, the same in every process."""
        return tensor_hash(self.embeddings, self.token_frequencies)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "CorpusContext":
        """A copy on another device or in another floating point type. Token frequencies stay in float32."""
        return replace(
            self,
            embeddings=_move(self.embeddings, device, dtype),
            token_frequencies=_move(self.token_frequencies, device),
            block=self.block.to(device, dtype) if self.block is not None else None,
        )

    def save(self, path: str | os.PathLike) -> None:
        """
        Writes the context to one safetensors file. An existing file is replaced only when the new one is complete.

        The documents' texts are not part of a context. The context block is not saved: it is much larger than the
        vectors and quickly recomputed from them.
        """
        tensors = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in (("embeddings", self.embeddings), ("token_frequencies", self.token_frequencies))
            if tensor is not None
        }
        metadata = {
            "first_stage_fingerprint": self.first_stage_fingerprint,
            "second_stage_fingerprint": self.second_stage_fingerprint,
        }
        _save_atomically(tensors, {_CONTEXT_KIND: json.dumps(metadata)}, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "CorpusContext":
        """Loads a context saved by [`CorpusContext.save`]."""
        tensors, metadata = _load(Path(path))
        return cls(**tensors, **metadata)


def count_token_frequencies(input_ids: Tensor, attention_mask: Tensor, vocab_size: int) -> Tensor:
    """
    Share of the documents that contain each token.

    Args:
        input_ids (`torch.Tensor` of shape `(num_documents, sequence_length)`):
            Token ids of the context documents.
        attention_mask (`torch.Tensor` of shape `(num_documents, sequence_length)`):
            Zero at padding, which is ignored.
        vocab_size (`int`):
            Size of the vocabulary.

    Returns:
        `torch.Tensor` of shape `(vocab_size,)`: The frequencies, between 0 and 1.

    Example:

    ```python
    >>> import torch
    >>> count_token_frequencies(torch.tensor([[1, 2, 2], [1, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]), 4)
    tensor([0.0000, 1.0000, 0.5000, 0.0000])

    ```
    """
    if input_ids.max() >= vocab_size:
        raise ValueError(
            f"The context has the token id {input_ids.max().item()}, but the vocabulary has {vocab_size} tokens. "
            "Tokenize it with the model's own tokenizer."
        )
    rows = torch.arange(len(input_ids), device=input_ids.device).unsqueeze(1).expand_as(input_ids)
    tokens_of_documents = (rows * vocab_size + input_ids)[attention_mask.bool()]
    counts = torch.bincount(torch.unique(tokens_of_documents) % vocab_size, minlength=vocab_size)
    return counts.float() / len(input_ids)


def sample_documents(documents: Sequence[T], size: int, *, seed: int = 0) -> list[T]:
    """
    Samples context documents without replacement. Returns all of them, in order, if there are at most `size`.

    Example:

    ```python
    >>> sample_documents(["a", "b", "c"], 5)
    ['a', 'b', 'c']
    >>> len(set(sample_documents(range(1000), 64, seed=1)))
    64

    ```
    """
    if size < 1:
        raise ValueError(f"`size` must be at least 1, got {size}. For no context use `CorpusContext.null()`.")
    if len(documents) <= size:
        return [documents[index] for index in range(len(documents))]
    return [documents[index] for index in random.Random(seed).sample(range(len(documents)), size)]


def documents_with_text(documents: Sequence[str]) -> list[str]:
    """The documents that contain text. Raises an error if there are none."""
    if isinstance(documents, str):
        raise TypeError("`documents` must be a list of texts, got one text. Put it in a list: `[text]`.")
    for document in documents:
        if not isinstance(document, str):
            raise TypeError(f"`documents` must be texts, got a `{type(document).__name__}`. Pass their contents.")
    texts = [document for document in documents if document.strip()]
    if not texts:
        raise ValueError(
            f"A context needs documents with text, got {len(documents)} without any. Pass documents of the corpus, or "
            "`None` for no context."
        )
    if len(texts) < len(documents):
        logger.warning(f"{len(documents) - len(texts)} of {len(documents)} documents have no text and are skipped.")
    return texts


def fill_documents(documents: list[T], size: int, *, seed: int = 0) -> list[T]:
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


def _move(tensor: Tensor | None, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Tensor | None:
    return tensor.to(device=device, dtype=dtype) if tensor is not None else None


def _save_atomically(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        save_file(tensors, Path(folder) / path.name, metadata=metadata)
        os.replace(Path(folder) / path.name, path)


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file `{path}`. Check the path, or save a context there first.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"`{path}` is not a complete safetensors file ({error}). Save it again.") from error
    if _CONTEXT_KIND not in metadata:
        raise ValueError(f"`{path}` contains no corpus context. Pass a file written by `CorpusContext.save`.")
    return tensors, json.loads(metadata[_CONTEXT_KIND])


__all__ = [
    "ContextBlock",
    "CorpusContext",
    "count_token_frequencies",
    "documents_with_text",
    "fill_documents",
    "sample_documents",
]
