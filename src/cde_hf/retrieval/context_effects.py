"""Does a context do anything? How far it moves the vectors of some texts, and whether it sets them apart."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

from ..modeling import CorpusContext


logger = logging.get_logger(__name__)

# Vectors that turn by less than this (one minus cosine) are the same for any search.
_NOTHING = 1e-4


@dataclass(frozen=True)
class ContextEffect:
    """
    What a context does to some texts.

    Args:
        moved (`float`):
            Mean of one minus the cosine between a text's vector with the context and without any.
        similarity (`float`):
            Mean cosine between two texts. Lower: they are set apart.
        margin (`float`):
            Mean difference between a text's cosine to its nearest and its second nearest other text. Higher:
            neighbours are easier to tell.
    """

    moved: float
    similarity: float
    margin: float


@dataclass(frozen=True)
class ContextReport:
    """
    The effects of no context, of a context, and of another one if it was given.

    Args:
        effects (`dict[str, ContextEffect]`):
            By name: `"none"`, `"context"` and, if given, `"other"`.
    """

    effects: dict[str, ContextEffect]

    def to_markdown(self) -> str:
        """A table with a row for each context."""
        lines = ["| context | moved | similarity | margin |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {effect.moved:.4f} | {effect.similarity:.4f} | {effect.margin:.4f} |"
            for name, effect in self.effects.items()
        ]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, dict[str, float]]:
        """The numbers, for JSON."""
        return {name: asdict(effect) for name, effect in self.effects.items()}


def context_report(
    model: SentenceTransformer,
    context: Sequence[str] | CorpusContext,
    texts: Sequence[str],
    *,
    other: Sequence[str] | CorpusContext | None = None,
) -> ContextReport:
    """
    Compares the vectors of texts in a context with those without any, and in another one.

    Args:
        model (`SentenceTransformer`):
            A CDE checkpoint. Its context is the same after as before.
        context (`Sequence[str]` or `CorpusContext`):
            The context in question.
        texts (`Sequence[str]`):
            At least three texts of the corpus or questions to it.
        other (`Sequence[str]` or `CorpusContext`, *optional*):
            The context of another corpus.

    Returns:
        `ContextReport`: The effects. A warning says when the context changes nothing.
    """
    if len(texts) < 3:
        raise ValueError(f"A margin needs at least 3 texts, got {len(texts)}. Give more texts of the corpus.")
    module = model[0]
    contexts = {"none": CorpusContext.null(), "context": context}
    if other is not None:
        contexts["other"] = other
    before = module.context
    try:
        vectors = {}
        for name, documents in contexts.items():
            module.set_context(documents)
            vectors[name] = model.encode(list(texts), normalize_embeddings=True)
    finally:
        module.set_context(before)
    report = ContextReport({name: _effect(part, vectors["none"]) for name, part in vectors.items()})
    if report.effects["context"].moved < _NOTHING:
        logger.warning(
            f"This context changes nothing: it turns the vectors of {len(texts)} texts by "
            f"{report.effects['context'].moved:.1e} on average. Check that the model was trained with contexts and "
            "that the documents are those of the corpus."
        )
    return report


def _effect(vectors: np.ndarray, without: np.ndarray) -> ContextEffect:
    similarities = vectors @ vectors.T
    is_other = ~np.eye(len(vectors), dtype=bool)
    nearest = np.sort(np.where(is_other, similarities, -np.inf), axis=1)
    return ContextEffect(
        moved=float(1 - (vectors * without).sum(axis=1).mean()),
        similarity=float(similarities[is_other].mean()),
        margin=float((nearest[:, -1] - nearest[:, -2]).mean()),
    )


__all__ = ["ContextEffect", "ContextReport", "context_report"]
