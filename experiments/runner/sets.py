"""The retrieval sets that models are scored on, cut so that a model takes a minute and not an hour."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cde_hf import RetrievalSet, load_retrieval_set, model_path

from .workspace import Workspace


WITH_BOILERPLATE = " with boilerplate"  # at the end of a set's name
NUM_WORDS = 12
FIRST_WORDS = 64  # so that texts which are cut have all of the boilerplate too


@dataclass(frozen=True)
class EvaluationConfig:
    """
    How models are scored.

    Args:
        sets (`tuple[str, ...]`):
            Folders of the folder `eval` of the data. A name that ends
            with `" with boilerplate"` is the same set with the same dozen words in all texts.
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
    folder = workspace.data_folder / "eval"
    words = boilerplate_words(AutoTokenizer.from_pretrained(model_path("minilm")))
    whole = [load_retrieval_set(folder / name.removesuffix(WITH_BOILERPLATE)) for name in config.sets]
    whole = [
        add_boilerplate(each, words) if name.endswith(WITH_BOILERPLATE) else each
        for each, name in zip(whole, config.sets, strict=True)
    ]
    samples = [sample_set(each, config.max_queries, config.max_documents, config.seed) for each in whole]
    return tuple(cut_set(each, config.max_length) for each in samples)


def boilerplate_words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The words that boilerplate is drawn from: those of more than three letters that are one token."""
    return sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 3)


def add_boilerplate(retrieval_set: RetrievalSet, words: Sequence[str]) -> RetrievalSet:
    """The same set with a dozen of the words, the same ones in all texts, each at a random place of its own."""
    generator = random.Random(retrieval_set.name)
    boilerplate = generator.sample(list(words), NUM_WORDS)

    def insert(text: str) -> str:
        parts = text.split()
        for word in boilerplate:
            parts.insert(generator.randint(0, min(len(parts), FIRST_WORDS)), word)
        return " ".join(parts)

    return replace(
        retrieval_set,
        name=f"{retrieval_set.name}{WITH_BOILERPLATE}",
        corpus={name: insert(text) for name, text in retrieval_set.corpus.items()},
        queries={name: insert(text) for name, text in retrieval_set.queries.items()},
    )


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
