"""CDE models in evaluations: with the context of the set, of another one, or with none."""

from collections.abc import Sequence

from sentence_transformers import SentenceTransformer

from ..modeling import CorpusContext
from .systems import SentenceTransformerEmbedder


class CDEEmbedder(SentenceTransformerEmbedder):
    """
    A [`ContextualEmbedder`] around a CDE checkpoint that was loaded by sentence-transformers.

    Args:
        model (`SentenceTransformer`):
            `SentenceTransformer(path, trust_remote_code=True)` of a CDE checkpoint.
        name (`str`):
            Name of its row in a table.
        batch_size (`int`, *optional*, defaults to `32`):
            Number of texts to encode at once.
    """

    def __init__(self, model: SentenceTransformer, name: str, *, batch_size: int = 32):
        if not is_contextual(model):
            raise TypeError(
                f"`{name}` is a plain sentence-transformers model, got the modules "
                f"{[type(module).__name__ for module in model.children()]}. Use `SentenceTransformerEmbedder`."
            )
        super().__init__(model, name, batch_size=batch_size)
        self.set_context(None)

    def set_context(self, documents: Sequence[str] | None) -> None:
        """Shows the model documents, or takes the context away: the model is then a plain biencoder."""
        self.model[0].set_context(CorpusContext.null() if documents is None else list(documents))


def is_contextual(model: SentenceTransformer) -> bool:
    """Whether a sentence-transformers model is a CDE checkpoint."""
    return type(model[0]).__name__ == "CDETransformer"


__all__ = ["CDEEmbedder", "is_contextual"]
