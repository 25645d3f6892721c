"""What can be evaluated: systems that embed texts, with or without a context, or rank documents."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Protocol, runtime_checkable

import numpy as np
from sentence_transformers import SentenceTransformer

from ..contextual_models import find_contextual_module, set_context, with_context
from ..modeling import Context
from ..vectors import SentenceTransformerEmbedder
from .exact_search import Ranking


# An evaluation embeds this number of documents, and then moves its progress bar.
DOCUMENTS_AT_ONCE = 512
_NUM_BLOCKS = 512


@runtime_checkable
class Embedder(Protocol):
    """
    Embeds texts as vectors that are compared by the inner product, one row for each text.

    Attributes:
        name (`str`):
            Name of its row in a table.
    """

    name: str

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray: ...

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray: ...


@runtime_checkable
class ContextualEmbedder(Embedder, Protocol):
    """Embeds texts with a context of documents. `set_context(None)` removes the context."""

    def set_context(self, documents: Sequence[str] | None) -> None: ...


@runtime_checkable
class Ranker(Protocol):
    """Ranks the documents of a corpus without vectors, at most `depth` of them for each query."""

    name: str

    def rank(self, queries: Sequence[str], documents: Sequence[str], *, depth: int) -> Ranking: ...


class ContextualModelEmbedder(SentenceTransformerEmbedder):
    """
    A [`ContextualEmbedder`] around a sentence-transformers model that takes a context.

    Args:
        model (`SentenceTransformer`):
            A contextualized model or a CDE checkpoint, which stays unchanged.
        name (`str`):
            Name of its row in a table.
        batch_size (`int`, *optional*, defaults to `32`):
            Number of texts to encode at once.
    """

    def __init__(self, model: SentenceTransformer, name: str, *, batch_size: int = 32):
        if find_contextual_module(model) is None:
            raise TypeError(
                f"`{name}` is a plain sentence-transformers model, got the modules "
                f"{[type(module).__name__ for module in model.children()]}. Use `SentenceTransformerEmbedder`, or "
                "`contextualize(model, None)`."
            )
        super().__init__(with_context(model, Context()), name, batch_size=batch_size)

    def set_context(self, documents: Sequence[str] | None) -> None:
        """Sets the context documents, all of them if the model can read as many, or removes the context."""
        if documents is None:
            set_context(self.model, Context())
        else:
            set_context(self.model, documents, size=max(1, len(documents)))


class RememberingEmbedder:
    """
    An [`Embedder`] that caches the latest vectors of another one, for tables in which several rows share them.

    Args:
        embedder (`Embedder`):
            Embeds the texts. It must return the same vectors for the same texts in the same context.
    """

    def __init__(self, embedder: Embedder):
        self.name = embedder.name
        self._context: tuple[str, ...] | None = None
        self._embed_queries = lru_cache(_NUM_BLOCKS)(partial(self._embed, embedder.embed_queries))
        self._embed_documents = lru_cache(_NUM_BLOCKS)(partial(self._embed, embedder.embed_documents))

    def _embed(
        self, embed: Callable[[Sequence[str]], np.ndarray], texts: tuple[str, ...], _: tuple[str, ...] | None
    ) -> np.ndarray:
        return embed(texts)

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of shape `(num_texts, dim)`."""
        return self._embed_queries(tuple(texts), self._context).copy()

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of shape `(num_texts, dim)`."""
        blocks = [tuple(texts[start : start + DOCUMENTS_AT_ONCE]) for start in range(0, len(texts), DOCUMENTS_AT_ONCE)]
        return np.concatenate([self._embed_documents(block, self._context) for block in blocks])


class RememberingContextualEmbedder(RememberingEmbedder):
    """A [`ContextualEmbedder`] that caches the latest vectors of another one, in each of its contexts."""

    def __init__(self, embedder: ContextualEmbedder):
        super().__init__(embedder)
        self._contextual = embedder
        self._is_set = False

    def set_context(self, documents: Sequence[str] | None) -> None:
        """Sets the context documents, or removes the context. It is made when a text is embedded."""
        self._context, self._is_set = None if documents is None else tuple(documents), False

    def _embed(
        self, embed: Callable[[Sequence[str]], np.ndarray], texts: tuple[str, ...], context: tuple[str, ...] | None
    ) -> np.ndarray:
        if not self._is_set:
            self._contextual.set_context(context)
            self._is_set = True
        return embed(texts)


__all__ = [
    "ContextualEmbedder",
    "ContextualModelEmbedder",
    "Embedder",
    "Ranker",
    "RememberingContextualEmbedder",
    "RememberingEmbedder",
    "SentenceTransformerEmbedder",
]
