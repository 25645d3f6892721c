"""
Scores models on retrieval sets, unless it was done before. What is kept of a model's training does not depend on this.

Texts are cut, queries and documents are drawn with a seed, so that a model takes a minute and not an hour.
"""

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import (
    BM25,
    CDEEmbedder,
    Evaluation,
    FrequencyPoolingEmbedder,
    RetrievalSet,
    SentenceTransformerEmbedder,
    WhitenedEmbedder,
    docstring_split,
    evaluate,
    load_retrieval_set,
    model_path,
)
from cde_hf.retrieval.systems import Embedder, Ranker

from .config import DOCSTRINGS, file_fingerprint, hash_of, source_fingerprint
from .training import Workspace


Scores = dict[str, dict[str, float]]  # by context and by set

_SOURCE_FOLDERS = ("retrieval", "modeling")


@dataclass(frozen=True)
class EvaluationConfig:
    """
    How models are scored.

    Args:
        sets (`tuple[str, ...]`):
            Folders of the folder `eval` of the data, or `("docstrings",)`: the held-out libraries.
        contexts (`tuple[str, ...]`, *optional*, defaults to `("own", "foreign", "none")`):
            Contexts of contextual models, as for `evaluate`. Another set's name gives that set's documents.
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
    return tuple(cut_texts(each, config.max_length) for each in samples)


def cut_texts(retrieval_set: RetrievalSet, max_length: int) -> RetrievalSet:
    """A set whose texts end after so many tokens of MiniLM, so that BM25 reads no more than the models do."""
    tokenizer = AutoTokenizer.from_pretrained(model_path("minilm"))

    def cut(texts: dict[str, str]) -> dict[str, str]:
        tokens = tokenizer(list(texts.values()), truncation=True, max_length=max_length, return_offsets_mapping=True)
        ends = [max(end for _, end in offsets) for offsets in tokens["offset_mapping"]]
        return {name: text[:end] for (name, text), end in zip(texts.items(), ends, strict=True)}

    return RetrievalSet(retrieval_set.name, cut(retrieval_set.corpus), cut(retrieval_set.queries), retrieval_set.qrels)


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


def score_model(workspace: Workspace, folder: str | Path, config: EvaluationConfig, kind: str = "plain") -> Scores:
    """
    NDCG@10 of a model, in percent.

    Args:
        workspace (`Workspace`):
            Where the data is.
        folder (`str` or `Path`):
            A sentence-transformers model: a trained run, or an encoder as it is.
        config (`EvaluationConfig`):
            How to score it.
        kind (`str`, *optional*, defaults to `"plain"`):
            `"plain"`; `"whitened"` or `"frequency-pooled"`, which need a biencoder; or `"contextual"`.

    Returns:
        `Scores`: For each context the score on each set. What has no context has `"none"`.
    """

    folder = Path(folder)
    identity = hash_of([file_fingerprint(folder / name) for name in ("config.json", "model.safetensors")])

    def make_system() -> Embedder:
        model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
        model.max_seq_length = config.max_length
        if kind == "contextual":
            return CDEEmbedder(model, "model")
        if kind == "frequency-pooled":
            return FrequencyPoolingEmbedder(model, "model")
        plain = SentenceTransformerEmbedder(model, "model")
        return plain if kind == "plain" else WhitenedEmbedder(plain, "model")

    return _score(workspace, make_system, config, f"{kind}-{identity}")


def score_bm25(workspace: Workspace, config: EvaluationConfig) -> Scores:
    """NDCG@10 of BM25, in percent, in the form of [`score_model`]."""
    return _score(workspace, lambda: BM25("model"), config, "bm25")


def _score(
    workspace: Workspace, make_system: Callable[[], Embedder | Ranker], config: EvaluationConfig, name: str
) -> Scores:
    sets = load_sets(workspace, config)
    identity = [asdict(config), [asdict(each) for each in sets], source_fingerprint(_SOURCE_FOLDERS)]
    path = workspace.runs / "scores" / f"{name}-{hash_of(identity)}.json"
    if not path.exists():
        others = {each.name: list(each.corpus.values()) for each in sets if each.name in config.contexts}
        contexts = [context for context in config.contexts if context not in others]
        path.parent.mkdir(parents=True, exist_ok=True)
        evaluate(
            [make_system()],
            sets,
            contexts=contexts,
            other_contexts=others,
            context_size=config.context_size,
            seed=config.seed,
        ).save(path)
    evaluation = Evaluation.from_json(path.read_text(encoding="utf-8"))
    return {
        _context_of(system): {name: 100 * evaluation.mean(system, retrieval_set=name) for name in evaluation.sets}
        for system in evaluation.systems
    }


def _context_of(system: str) -> str:
    """The context in a row's name, such as `model, own context`."""
    context = system.partition(", ")[2].removesuffix(" context")
    return "none" if context in ("", "no") else context
