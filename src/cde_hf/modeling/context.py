"""
The context: what a model knows about a corpus.

A [`Context`] is a value. It is computed once from documents of the corpus, given to a model by `set_context`, reused
for every text, and can be saved. It is tied to the model that reads it by a hash, the model's [`fingerprint`].
"""

import hashlib
import json
import os
import random
import reprlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import logging


logger = logging.get_logger(__name__)

T = TypeVar("T")
Documents = Sequence[str] | Mapping[str, str]  # documents of a corpus, as a list or by id

CONTEXT_FILE = "context.safetensors"
_SAVED_TENSORS = ("embeddings", "token_frequencies")
_TERMS = "terms."  # begins the names of the corpus part's tensors in a file


@dataclass(frozen=True, eq=False, repr=False)
class CorpusTerms:
    """
    What the corpus part of embeddings knows about a corpus: a weight and a vector of each term.

    Args:
        ids (`torch.Tensor` of shape `(num_terms,)`):
            Token ids of the terms, in ascending order.
        idf (`torch.Tensor` of shape `(num_terms,)`):
            Their inverse document frequencies.
        vectors (`torch.Tensor` of shape `(num_terms, num_directions)`):
            Their vectors, the most important direction first.
        mean_length (`float`):
            Mean number of tokens of the documents.
        weight (`float`, *optional*, defaults to `0.0`):
            Weight of the corpus part's cosine. The cosine of the dense part has weight 1.
        encoder (`str`, *optional*):
            Hash of the encoder by whose cosines the weight was calibrated.
    """

    ids: Tensor
    idf: Tensor
    vectors: Tensor
    mean_length: float
    weight: float = 0.0
    encoder: str | None = None

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.idf) == len(self.vectors):
            raise ValueError(
                f"The corpus part has {len(self.ids)} terms, {len(self.idf)} weights and {len(self.vectors)} vectors. "
                "There must be as many of each. Fit it again: `set_context(model, corpus)`."
            )

    tensor_names = ("ids", "idf", "vectors")

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in self.tensor_names}

    @property
    def numbers(self) -> dict[str, Any]:
        """What is not a tensor, for JSON."""
        return {name: getattr(self, name) for name in ("mean_length", "weight", "encoder")}

    @cached_property
    def row_of_token(self) -> Tensor:
        """Row of each token id, of shape `(largest_id + 2,)`. -1 if it is no term, as the last one."""
        rows = torch.full((int(self.ids.max()) + 2,), -1, device=self.ids.device)
        rows[self.ids] = torch.arange(len(self.ids), device=self.ids.device)
        return rows

    def to(self, device: torch.device | str | None) -> "CorpusTerms":
        """The same terms on another device."""
        ids, idf, vectors = (tensor.to(device) for tensor in self.tensors.values())
        return self if ids is self.ids else replace(self, ids=ids, idf=idf, vectors=vectors)


@dataclass(frozen=True, eq=False, repr=False)
class Context:
    """
    What a model knows about a corpus. Every part is optional, and `Context()` is the empty context.

    Args:
        embeddings (`torch.Tensor` of shape `(num_documents, hidden_size)`, *optional*):
            First-stage vectors of the context documents.
        token_frequencies (`torch.Tensor` of shape `(vocab_size,)`, *optional*):
            Share of the context documents that contain each token.
        keys_values (`tuple`, *optional*):
            The context block of prefix attention: the keys and values of each layer, of shape
            `(1, num_heads, num_block_tokens, head_dim)`.
        num_documents (`int`, *optional*, defaults to `0`):
            Number of context documents.
        fingerprint (`str`, *optional*):
            Hash of what reads the context: the second stage of a CDE model, or the tokenizer of another model. `None`
            is not checked, as in a training step.
        terms (`CorpusTerms`, *optional*):
            The corpus part: term vectors fitted to the corpus, and their weight.

    Example:

    ```python
    >>> Context()
    Context(empty)
    >>> Context(token_frequencies=torch.zeros(100), num_documents=8)
    Context(8 documents, frequencies of 100 tokens)

    ```
    """

    embeddings: Tensor | None = None
    token_frequencies: Tensor | None = None
    keys_values: tuple[tuple[Tensor, Tensor], ...] | None = None
    num_documents: int = 0
    fingerprint: str | None = None
    terms: CorpusTerms | None = None

    # Names the class in files, and among the copies of this code that checkpoints bring.
    format = "cde_context"

    def __repr__(self) -> str:
        parts = [f"{self.num_documents} documents"] if self.num_documents else []
        if self.embeddings is not None:
            parts.append(f"vectors of {self.embeddings.shape[-1]} dimensions")
        if self.token_frequencies is not None:
            parts.append(f"frequencies of {len(self.token_frequencies)} tokens")
        if self.keys_values is not None:
            parts.append(f"block of {len(self.keys_values)} layers")
        if self.terms is not None:
            parts.append("corpus part of {} terms in {} directions".format(*self.terms.vectors.shape))
        return f"Context({', '.join(parts) or 'empty'})"

    @cached_property
    def hash(self) -> str:
        """A short hash of the contents, the same in every process."""
        terms = self.terms
        of_terms = () if terms is None else (*terms.tensors.values(), torch.tensor([terms.mean_length, terms.weight]))
        return tensor_hash(self.embeddings, self.token_frequencies, *of_terms)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Context":
        """The context on another device. Only its block is cast, so the hash of the context stays the same."""
        parts = {name: getattr(self, name) for name in (*_SAVED_TENSORS, "terms")}
        changes = {name: part.to(device) for name, part in parts.items() if part is not None}
        is_same = all(part is parts[name] for name, part in changes.items())
        if self.keys_values is not None:
            block = tuple((key.to(device, dtype), value.to(device, dtype)) for key, value in self.keys_values)
            is_same &= block[0][0] is self.keys_values[0][0]
            changes["keys_values"] = block
        return self if is_same else replace(self, **changes)

    def save(self, path: str | os.PathLike) -> None:
        """
        Writes the context to one safetensors file. An existing file is replaced only when the new one is complete.

        The documents' texts are not part of a context. The context block is large and quickly recomputed: not saved.
        """
        path = Path(path)
        tensors = {name: getattr(self, name) for name in _SAVED_TENSORS if getattr(self, name) is not None}
        metadata: dict[str, Any] = {name: getattr(self, name) for name in ("num_documents", "fingerprint", "hash")}
        if self.terms is not None:
            tensors |= {_TERMS + name: tensor for name, tensor in self.terms.tensors.items()}
            tensors[f"{_TERMS}vectors"] = self.terms.vectors.half()  # exact: they were rounded when fitted
            metadata["terms"] = self.terms.numbers
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            # Not by `save_file`, whose files nobody else may read.
            (Path(folder) / path.name).write_bytes(save(tensors, {self.format: json.dumps(metadata)}))
            os.replace(Path(folder) / path.name, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Context":
        """Loads a context saved by [`Context.save`], on the CPU."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file `{path}`. Check the path, or save a context there first.")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
            tensors: dict[str, Any] = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"`{path}` is not a complete safetensors file ({error}). Save it again.") from error
        if cls.format not in metadata:
            raise ValueError(f"`{path}` contains no context. Pass a file written by `Context.save`.")
        parts = json.loads(metadata[cls.format])
        if "terms" in parts:
            try:
                ids, idf, vectors = (tensors.pop(_TERMS + name) for name in CorpusTerms.tensor_names)
                parts["terms"] = CorpusTerms(ids, idf, vectors.float(), **parts["terms"])
            except (KeyError, TypeError) as error:
                raise ValueError(f"The corpus part in `{path}` is incomplete ({error}). Save it again.") from error
        parts |= tensors
        saved_hash = parts.pop("hash", None)
        if unknown := sorted(set(parts) - {field.name for field in fields(cls)}):
            raise ValueError(
                f"`{path}` contains {', '.join(unknown)}, which this version does not know. Update cde-hf, or encode "
                "the context again."
            )
        context = cls(**parts)
        if saved_hash not in (None, context.hash):
            raise ValueError(f"`{path}` is corrupt: it has other numbers than were saved. Save the context again.")
        return context


@runtime_checkable
class ContextualModule(Protocol):
    """A sentence-transformers module that can be given a context."""

    context: Context | None  # of every text that is encoded, `None` if none was set

    @property
    def settings(self) -> dict[str, Any]:
        """What the vectors depend on besides weights, tokenizer and context."""

    def set_context(self, documents: Documents | Context | None, *, size: int | None = None, seed: int = 0) -> None:
        """Sets the context: documents of a corpus, of which `size` are sampled, or a context, or `None` for none."""


class TakesContext:
    """Base of the modules in PyTorch that take a context."""

    def set_context(self, documents: Documents | Context | None, *, size: int | None = None, seed: int = 0) -> None:
        """
        Sets the context for every text that is encoded from now on.

        Args:
            documents (`Sequence[str]`, `Mapping[str, str]`, `Context` or `None`):
                Documents of the corpus, as a list or by id. Documents without text are skipped. Or a context:
                `Context()` gives embeddings without a context. `None` removes the context.
            size (`int`, *optional*):
                Number of documents to sample. Defaults to `context_size` for a CDE model, which is its maximum, and to
                50,000 for other modules. If there are fewer, all are used.
            seed (`int`, *optional*, defaults to `0`):
                Seed of the sample and of what is fitted to it.
        """
        context = as_context(documents)
        if documents is not None and context is None:
            context = self._make_context(_documents_with_text(cast(Documents, documents)), size, seed)
        self._use_context(context)

    def _make_context(self, documents: list[str], size: int | None, seed: int) -> Context:
        raise NotImplementedError

    def _use_context(self, context: Context | None) -> None:
        raise NotImplementedError


def as_context(value: object) -> Context | None:
    """
    A context as an object of this module's class. `None` if the value is none, such as documents.

    A checkpoint brings a copy of this code, so that a process may have several classes `Context`.
    """
    if isinstance(value, Context):
        return value
    if getattr(type(value), "format", None) != Context.format:
        return None
    parts = {field.name: getattr(value, field.name) for field in fields(Context) if hasattr(value, field.name)}
    if parts.get("terms") is not None:
        parts["terms"] = CorpusTerms(**parts["terms"].tensors, **parts["terms"].numbers)
    return Context(**parts)


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
        raise ValueError(f"`size` must be at least 1, got {size}. For no context use `Context()`.")
    if len(documents) <= size:
        return [documents[index] for index in range(len(documents))]
    return [documents[index] for index in random.Random(seed).sample(range(len(documents)), size)]


def check_text(text: Any, place: str) -> None:
    """Refuses what is no text, and a text that no tokenizer can read."""
    if not isinstance(text, str):
        raise TypeError(f"Inputs and documents must be texts, got {reprlib.repr(text)} in {place}. Pass its text.")
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise ValueError(
            f"A text in {place} has half of a character, such as a broken emoji: {reprlib.repr(text)}. No tokenizer "
            "can read it. Repair or remove it."
        )


def _documents_with_text(documents: Documents) -> list[str]:
    """The documents that contain text, as a list or by id. Raises an error if there are none."""
    if isinstance(documents, str):
        raise TypeError("`documents` must be a list of texts, got one text. Put it in a list: `[text]`.")
    if isinstance(documents, Mapping):
        documents = list(documents.values())
    for row, document in enumerate(documents):
        check_text(document, f"row {row} of `documents`")
    texts = [document for document in documents if document.strip()]
    if not texts:
        raise ValueError(
            f"A context needs documents with text, got {len(documents)} without any. Pass documents of the corpus, or "
            "`None` for no context."
        )
    if len(texts) < len(documents):
        logger.warning(f"{len(documents) - len(texts)} of {len(documents)} documents have no text and are skipped.")
    return texts


def save_in_folder(context: Context | None, folder: str | os.PathLike) -> None:
    """Saves the context of a module in its folder. Without a context, the file of an earlier one is removed."""
    if context is None:
        (Path(folder) / CONTEXT_FILE).unlink(missing_ok=True)
    else:
        context.save(Path(folder) / CONTEXT_FILE)


def ship_code(file: str, folder: Path) -> None:
    """Copies a file of code, and the files that it imports, to the folder of a model."""
    for path in (file, *get_relative_import_files(file)):
        shutil.copyfile(path, folder / Path(path).name)


_known_fingerprints: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], str]] = WeakKeyDictionary()


def fingerprint(module: nn.Module) -> str:
    """
    A short hash of all weights of a module, the same in every process.

    Weights are rounded to bfloat16: casting a model from float32 to bfloat16 and back keeps the hash, float16 rounds
    differently and changes it. The first stage of a CDE model is skipped: a text's vector depends on it only through
    the context. The hash is cached until weights are written or one probed value of a parameter changes.
    """
    probe = _probe(module)
    if module in _known_fingerprints and _known_fingerprints[module][0] == probe:
        return _known_fingerprints[module][1]
    digest = hashlib.blake2b(digest_size=8)
    for name, weights in module.named_parameters():
        if "first_stage_model." not in name:
            digest.update(f"{name}{tuple(weights.shape)}".encode())
            for part in weights.detach().flatten().split(2**24):
                digest.update(_bytes(part.to(torch.bfloat16).view(torch.int16)))
    _known_fingerprints[module] = (probe, digest.hexdigest())
    return digest.hexdigest()


def tensor_hash(*tensors: Tensor | None) -> str:
    """A short hash of the contents of tensors. `None` is a distinct value."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(b"none" if tensor is None else f"{tuple(tensor.shape)}".encode() + _bytes(tensor.float()))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def weight_versions(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Numbers that change when weights are written or replaced, except by fused optimizers. Reads no weights."""
    # Weights made in inference mode have no counter.
    return tuple((id(each), 0 if each.is_inference() else each._version) for each in module.parameters())


def _probe(module: nn.Module) -> tuple[Any, ...]:
    # Fused optimizers do not count what they write, but they change the probed values.
    parameters = list(module.parameters())
    if not parameters:
        raise ValueError(
            "The model has no weights in PyTorch to tell it from others, like models in ONNX. Use the PyTorch model."
        )
    values = [parameter.detach().reshape(-1)[parameter.numel() // 2].float() for parameter in parameters]
    if len({value.device for value in values}) > 1:
        values = [value.cpu() for value in values]
    return (*torch.stack(values).tolist(), *weight_versions(module))


__all__ = [
    "CONTEXT_FILE",
    "Context",
    "ContextualModule",
    "CorpusTerms",
    "TakesContext",
    "as_context",
    "check_text",
    "fingerprint",
    "sample_documents",
    "save_in_folder",
    "ship_code",
    "tensor_hash",
    "weight_versions",
]
