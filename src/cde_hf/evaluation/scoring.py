"""Evaluates systems on retrieval sets. Contextual systems use the set's own context, a foreign one or none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from tqdm.auto import tqdm

from ..data import RetrievalSet, check_counts, check_seed
from ..messages import kind_of
from ..modeling import sample_documents
from ..vectors import check_vectors
from .exact_search import Ranking, search_vectors
from .hybrid import Hybrid
from .metrics import RANKING_DEPTH, check_scorer, score_ranking
from .result import Evaluation, Row, Scores
from .systems import DOCUMENTS_AT_ONCE, ContextualEmbedder, Embedder, Ranker


ContextName = Literal["own", "foreign", "random", "none"]
CONTEXTS: tuple[ContextName, ...] = get_args(ContextName)


def evaluate(
    systems: Sequence[Embedder | Ranker],
    retrieval_sets: Sequence[RetrievalSet],
    *,
    contexts: Sequence[ContextName] = ("own",),
    other_contexts: Mapping[str, Sequence[str]] | None = None,
    context_size: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """
    Evaluates every system on every retrieval set with exact search.

    Args:
        systems (sequence of `Embedder`, `ContextualEmbedder`, `Ranker` or `Hybrid`):
            The systems. Contextual systems end up without a context.
        retrieval_sets (`Sequence[RetrievalSet]`):
            The sets.
        contexts (sequence of `str`, *optional*, defaults to `("own",)`):
            Contexts of contextual systems, one row for each: `"own"` takes documents of the set itself, `"foreign"` of
            the next set in the list, `"random"` of all other sets, and `"none"` uses no context.
        other_contexts (`Mapping[str, Sequence[str]]`, *optional*):
            More contexts, each a list of documents to sample from. They are used on every set. Their names must differ
            from those above.
        context_size (`int`, *optional*):
            Number of context documents, which are the same for all systems. Defaults to all documents, of which each
            system reads what it can.
        seed (`int`, *optional*, defaults to `0`):
            Seed with which they are sampled.

    Returns:
        `Evaluation`: The score of every query.
    """
    check_scorer()
    for argument, value in {"systems": systems, "retrieval_sets": retrieval_sets}.items():
        if not isinstance(value, Iterable):
            raise TypeError(f"`{argument}` must be a list, got {kind_of(value)}. Put it in a list.")
    _check_systems(systems)
    _check_names("systems", [system.name for system in systems])
    _check_names("retrieval sets", [retrieval_set.name for retrieval_set in retrieval_sets])
    other_contexts = other_contexts or {}
    if not set(contexts) <= set(CONTEXTS) or not (contexts or other_contexts):
        raise ValueError(f"`contexts` must be some of {', '.join(CONTEXTS)}, got {list(contexts)}. Name at least one.")
    taken = [name for name in other_contexts if name in CONTEXTS]
    if taken:
        raise ValueError(f"`{taken[0]}` in `other_contexts` already means another context. Rename it.")
    strange = [context for context in ("foreign", "random") if context in contexts]
    if strange and len(retrieval_sets) < 2:
        raise ValueError(
            f"A {strange[0]} context comes from another retrieval set, but there is only one. Give a second set, or "
            f"leave `{strange[0]}` out of `contexts`."
        )
    check_counts(context_size=context_size)
    check_seed(seed)
    samples = [sample_context(retrieval_set, context_size, seed) for retrieval_set in retrieval_sets]
    others = {name: _sample(texts, context_size, seed) for name, texts in other_contexts.items()}
    scores: dict[str, dict[Row, Scores]] = {}
    foreign_sets: dict[str, str] = {}
    for index, retrieval_set in enumerate(retrieval_sets):
        next_index = (index + 1) % len(retrieval_sets)
        strangers = [text for other, sample in enumerate(samples) if other != index for text in sample]
        documents = {
            "own": samples[index],
            "foreign": samples[next_index],
            "random": _sample(strangers, context_size, seed),
            "none": None,
        }
        shown = {context: documents[context] for context in contexts} | others
        if "foreign" in contexts:
            foreign_sets[retrieval_set.name] = retrieval_sets[next_index].name
        scores[retrieval_set.name] = dict(
            pair for system in systems for pair in score_set(system, retrieval_set, shown)
        )
    return Evaluation(scores, foreign_sets, context_size, seed)


def score_set(
    system: Embedder | Ranker, retrieval_set: RetrievalSet, contexts: Mapping[str, Sequence[str] | None]
) -> Iterator[tuple[Row, Scores]]:
    """
    Scores a system on one retrieval set. A contextual system ends up without a context.

    Args:
        system (`Embedder`, `ContextualEmbedder` or `Ranker`):
            The system.
        retrieval_set (`RetrievalSet`):
            The set.
        contexts (`Mapping[str, Sequence[str] | None]`):
            Context documents by the name of the context, `None` for no context.

    Returns:
        `Iterator[tuple[Row, Scores]]`: A row and its scores for each context if the system is contextual, otherwise
        one row.
    """
    contextual = system if isinstance(system, ContextualEmbedder | Hybrid) else None
    if isinstance(contextual, Hybrid) and not contextual.takes_context:
        contextual = None
    pairs: Iterable[tuple[str | None, Sequence[str] | None]] = contexts.items() if contextual else [(None, None)]
    for context, documents in pairs:
        if contextual is not None:
            contextual.set_context(documents)
        row = Row(system.name, context)
        yield row, score_ranking(_rank(system, retrieval_set, row), retrieval_set)
    if contextual is not None:
        contextual.set_context(None)


def sample_context(retrieval_set: RetrievalSet, context_size: int | None, seed: int) -> list[str]:
    """Samples documents of a set that have text; all of them if there are fewer than `context_size`."""
    texts = [text for text in retrieval_set.corpus.values() if text.strip()]
    if not texts:
        raise ValueError(
            f"None of the {len(retrieval_set.corpus)} documents of `{retrieval_set.name}` has any text. Check its "
            "corpus file."
        )
    return _sample(texts, context_size, seed)


def _sample(texts: Sequence[str], context_size: int | None, seed: int) -> list[str]:
    return list(texts) if context_size is None else sample_documents(texts, context_size, seed=seed)


def _rank(system: Embedder | Ranker, retrieval_set: RetrievalSet, row: Row) -> Ranking:
    queries, documents = list(retrieval_set.queries.values()), list(retrieval_set.corpus.values())
    if isinstance(system, Ranker):
        return system.rank(queries, documents, depth=RANKING_DEPTH)
    title = f"{retrieval_set.name}: {row}"
    query_vectors = check_vectors(system.embed_queries(queries), f"{system.name}'s queries", num_texts=len(queries))

    def document_blocks() -> Iterator[np.ndarray]:
        with tqdm(total=len(documents), desc=title, unit=" documents", leave=False) as progress:
            for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
                block = documents[start : start + DOCUMENTS_AT_ONCE]
                name = f"{system.name}'s documents"
                yield check_vectors(
                    system.embed_documents(block), name, num_texts=len(block), width=query_vectors.shape[1]
                )
                progress.update(len(block))

    return search_vectors(query_vectors, document_blocks(), depth=RANKING_DEPTH)


def _check_systems(systems: Sequence[Embedder | Ranker]) -> None:
    for system in systems:
        if not hasattr(system, "name"):
            raise TypeError(
                f"A system must be an embedder or a ranker, got {kind_of(system)}. Wrap a model: "
                "`SentenceTransformerEmbedder(model, 'its name')`, or `ContextualModelEmbedder` if it takes a context."
            )


def _check_names(kind: str, names: list[str]) -> None:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"The {kind} need different names and at least one is needed, got {names}. Rename them.")


__all__ = ["CONTEXTS", "ContextName", "evaluate", "sample_context", "score_set"]
