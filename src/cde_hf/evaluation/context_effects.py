"""Measures what a context does: how far it moves the vectors of texts, and whether it separates them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

from ..contextual_models import set_context, with_context
from ..data import Corpus, check_texts
from ..modeling import Context


logger = logging.get_logger(__name__)

# Two vectors are the same for any search if one minus their cosine is below this.
_NOTHING = 1e-4


@dataclass(frozen=True)
class ContextEffect:
    """
    The effect of a context on some texts.

    Args:
        moved (`float`):
            Mean of one minus the cosine between a text's vectors with and without the context.
        similarity (`float`):
            Mean cosine between two texts. Lower means better separated.
        margin (`float`):
            Mean difference between a text's cosines to its nearest and its second nearest text. Higher means that
            neighbours are easier to tell apart.
    """

    moved: float
    similarity: float
    margin: float


@dataclass(frozen=True)
class ContextReport:
    """
    The effects of no context, of a context, and of another context if given.

    Args:
        effects (`dict[str, ContextEffect]`):
            By name: `"none"`, `"context"` and, if given, `"other"`.
    """

    effects: dict[str, ContextEffect]

    def to_markdown(self) -> str:
        """Returns a table with a row for each context."""
        lines = ["| context | moved | similarity | margin |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {effect.moved:.4f} | {effect.similarity:.4f} | {effect.margin:.4f} |"
            for name, effect in self.effects.items()
        ]
        return "\n".join(lines) + "\n"


def context_report(
    model: SentenceTransformer,
    context: Corpus | Context,
    texts: Sequence[str],
    *,
    other: Corpus | Context | None = None,
) -> ContextReport:
    """
    Compares the vectors of texts with a context, without any, and with another context.

    Args:
        model (`SentenceTransformer`):
            A contextualized model or a CDE checkpoint, which stays unchanged.
        context (`Corpus` or `Context`):
            The context to measure.
        texts (`Sequence[str]`):
            At least three texts of the corpus, or queries.
        other (`Corpus` or `Context`, *optional*):
            The context of another corpus.

    Returns:
        `ContextReport`: The effects. If the context changes nothing, a warning says so.
    """
    check_texts(texts, kind="text")
    if len(texts) < 3:
        raise ValueError(f"A margin needs at least 3 texts, got {len(texts)}. Give more texts of the corpus.")
    contexts = {"none": Context(), "context": context}
    if other is not None:
        contexts["other"] = other
    twin = with_context(model, Context())
    vectors = {}
    for name, documents in contexts.items():
        set_context(twin, documents)
        vectors[name] = twin.encode(list(texts), normalize_embeddings=True)
    report = ContextReport({name: _effect(part, vectors["none"]) for name, part in vectors.items()})
    if report.effects["context"].moved < _NOTHING:
        logger.warning(
            f"This context changes nothing: it moves the vectors of {len(texts)} texts by "
            f"{report.effects['context'].moved:.1e} on average. Check that the model was trained with contexts and "
            "that the documents belong to the corpus."
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
