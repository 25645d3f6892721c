"""Vectors that several rows of one table share, computed once."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from .systems import Embedder


# A block of the evaluation is a few megabytes; a set of 250,000 documents is about sixty blocks.
_NUM_BLOCKS = 64


class RememberingEmbedder:
    """
    An [`Embedder`] that keeps the last vectors of another one, in memory: a model that is evaluated as it is and
    whitened, in several contexts, then reads every text only once.

    Args:
        embedder (`Embedder`):
            Makes the vectors. It must give the same ones for the same texts.
    """

    def __init__(self, embedder: Embedder):
        self.embedder = embedder
        self.name = embedder.name
        self._blocks: OrderedDict[tuple[str, ...], np.ndarray] = OrderedDict()

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of shape `(num_texts, dim)`."""
        return self._embed("query", self.embedder.embed_queries, texts)

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of shape `(num_texts, dim)`."""
        return self._embed("document", self.embedder.embed_documents, texts)

    def _embed(self, kind: str, embed: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]) -> np.ndarray:
        key = (kind, *texts)
        if key not in self._blocks:
            self._blocks[key] = embed(texts)
            if len(self._blocks) > _NUM_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key].copy()


__all__ = ["RememberingEmbedder"]
