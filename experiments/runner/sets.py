"""The retrieval sets that models are scored on, cut so that a model takes a minute and not an hour."""

import random
from dataclasses import dataclass
from functools import cache

from transformers import AutoTokenizer

from cde_hf import RetrievalSet, docstring_split, load_retrieval_set, model_path

from .config import DOCSTRINGS
from .workspace import Workspace


@dataclass(frozen=True)
class EvaluationConfig:
    """
    How models are scored.

    Args:
        sets (`tuple[str, ...]`):
            Folders of the folder `eval` of the data, or `("docstrings",)`: the held-out libraries.
        contexts (`tuple[str, ...]`, *optional*, defaults to `("own", "foreign", "none")`):
            Contexts of contextual models, as for `evaluate`. A set's name gives that set's documents, `"training"`
            those of `training_domains`.
        training_domains (`tuple[str, ...]`, *optional*, defaults to `()`):
            Domains of training pairs.
        context_size (`int`, *optional*, defaults to `64`):
            Context documents.
        max_queries (`int`, *optional*, defaults to `200`):
            Queries to draw of a set.
        max_documents (`int`, *optional*):
            Documents to draw of a set, beside the positive ones of the queries. Defaults to all.
        max_length (`int`, *optional*, defaults to `48`):
            Tokens to read of a text.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws.
    """

    sets: tuple[str, ...]
    contexts: tuple[str, ...] = ("own", "foreign", "none")
    training_domains: tuple[str, ...] = ()
    context_size: int = 64
    max_queries: int = 200
    max_documents: int | None = None
    max_length: int = 48
    seed: int = 0


@cache
def load_sets(workspace: Workspace, config: EvaluationConfig) -> tuple[RetrievalSet, ...]:
    """The retrieval sets, each cut to what the configuration asks for."""
    if config.sets == DOCSTRINGS:
        whole = docstring_split()[1]
    else:
        whole = [load_retrieval_set(workspace.data_folder / "eval" / name) for name in config.sets]
    samples = [sample_set(each, config.max_queries, config.max_documents, config.seed) for each in whole]
    return tuple(cut_set(each, config.max_length) for each in samples)


def cut_set(retrieval_set: RetrievalSet, max_length: int) -> RetrievalSet:
    """A set whose texts end after so many tokens, so that BM25 reads no more than the models do."""

    def cut(texts: dict[str, str]) -> dict[str, str]:
        return dict(zip(texts, cut_texts(list(texts.values()), max_length), strict=True))

    return RetrievalSet(retrieval_set.name, cut(retrieval_set.corpus), cut(retrieval_set.queries), retrieval_set.qrels)


def cut_texts(texts: list[str], max_length: int) -> list[str]:
    """Texts that end after so many tokens of MiniLM."""
    tokenizer = AutoTokenizer.from_pretrained(model_path("minilm"))
    tokens = tokenizer(texts, truncation=True, max_length=max_length, return_offsets_mapping=True)
    ends = [max(end for _, end in offsets) for offsets in tokens["offset_mapping"]]
    return [text[:end] for text, end in zip(texts, ends, strict=True)]


def sample_set(retrieval_set: RetrievalSet, max_queries: int, max_documents: int | None, seed: int) -> RetrievalSet:
    """Some queries, all documents judged for them that answer them, and documents to fill up the corpus."""
    generator = random.Random(seed)
    names = sorted(retrieval_set.queries)
    names = sorted(generator.sample(names, min(max_queries, len(names))))
    kept = sorted(retrieval_set.corpus)
    if max_documents is not None:
        positives = {document for name in names for document, grade in retrieval_set.qrels[name].items() if grade > 0}
        others = [document for document in kept if document not in positives]
        num_others = min(max(0, max_documents - len(positives)), len(others))
        kept = sorted([*positives, *generator.sample(others, num_others)])
    corpus = {document: retrieval_set.corpus[document] for document in kept}
    qrels = {
        name: {document: grade for document, grade in retrieval_set.qrels[name].items() if document in corpus}
        for name in names
    }
    return RetrievalSet(retrieval_set.name, corpus, {name: retrieval_set.queries[name] for name in names}, qrels)
