"""Scores models on retrieval sets, unless it was done before. No run's training depends on this."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, lru_cache, partial
from pathlib import Path

from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import contextualize, model_path
from cde_hf.evaluation import (
    BM25,
    ContextualModelEmbedder,
    Embedder,
    Evaluation,
    Ranker,
    RememberingEmbedder,
    SentenceTransformerEmbedder,
    WhitenedEmbedder,
    evaluate,
)

from .config import file_fingerprint, hash_of, source_fingerprint
from .sets import EvaluationConfig, load_sets
from .workspace import Workspace


Scores = dict[str, dict[str, float]]  # by context and by set

FREQUENCY_SCALE = 0.2  # as in `contextualize`

FREQUENCY_FIELDS = {"pooling": "context_frequency", "frequency_scale": FREQUENCY_SCALE}
# Of a biencoder, and of a contextual model with what each changes of its configuration.
BIENCODER_KINDS = ("plain", "whitened", "frequency-pooled")
CONTEXTUAL_KINDS = {
    "contextual": {},
    "contextual, frequency-pooled": FREQUENCY_FIELDS,
}
_SOURCES = ("evaluation", "modeling", "contextual_models.py", "vectors.py")  # the code that makes scores


def score_model(workspace: Workspace, folder: str | Path, config: EvaluationConfig, kind: str = "plain") -> Scores:
    """
    NDCG@10 of a model, in percent.

    Args:
        workspace (`Workspace`):
            Where the data is.
        folder (`str` or `Path`):
            A sentence-transformers model: a trained run, or an unchanged encoder.
        config (`EvaluationConfig`):
            How to score it.
        kind (`str`, *optional*, defaults to `"plain"`):
            Of a biencoder `"plain"`, `"whitened"` or `"frequency-pooled"`; of a contextual model `"contextual"`, as
            it was trained, or `"contextual, frequency-pooled"`.

    Returns:
        `Scores`: For each context the score on each set. What has no context has `"none"`.
    """
    scores = {}
    for single in _single_contexts(config):
        scores |= context_means(evaluate_model(workspace, folder, single, kind=kind))
    return scores


def evaluate_model(workspace: Workspace, folder: str | Path, config: EvaluationConfig, *, kind: str) -> Evaluation:
    """Every score of a model in the one context of `config`; the arguments are those of [`score_model`]."""
    make_system = partial(load_system, folder, kind, config.max_length)
    return evaluate_once(workspace, make_system, config, system_fingerprint(folder, kind))


@lru_cache(maxsize=1)
def load_system(folder: str | Path, kind: str, max_length: int) -> Embedder:
    """A model as what can be evaluated; the kinds are those of [`score_model`]."""
    if kind in CONTEXTUAL_KINDS:
        return ContextualModelEmbedder(
            load_sentence_transformer(folder, max_length, **CONTEXTUAL_KINDS[kind]), "model"
        )
    if kind == "frequency-pooled":
        model = contextualize(load_sentence_transformer(folder, max_length), None, corpus_dim=0)
        return ContextualModelEmbedder(model, "model")
    if kind not in BIENCODER_KINDS:
        raise ValueError(
            f"A model cannot be scored as `{kind}`. Use one of {', '.join([*BIENCODER_KINDS, *CONTEXTUAL_KINDS])}."
        )
    plain = _plain_embedder(folder, max_length)
    return plain if kind == "plain" else WhitenedEmbedder(plain, "model")


def load_sentence_transformer(folder: str | Path, max_length: int, **config_fields) -> SentenceTransformer:
    """A model with some fields of its configuration changed."""
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu", model_kwargs=config_fields)
    model.max_seq_length = max_length
    return model


@lru_cache(maxsize=1)
def _plain_embedder(folder: str | Path, max_length: int) -> RememberingEmbedder:
    """Remembers its vectors, which are whitened next."""
    return RememberingEmbedder(SentenceTransformerEmbedder(load_sentence_transformer(folder, max_length), "model"))


def system_fingerprint(folder: str | Path, kind: str) -> str:
    """A name for a model used in a way, whatever folder it is in."""
    fingerprints = [file_fingerprint(Path(folder) / name) for name in ("config.json", "model.safetensors")]
    return f"{kind}-{hash_of([*fingerprints, CONTEXTUAL_KINDS.get(kind, {})])}"


def is_scored(workspace: Workspace, folder: str | Path, config: EvaluationConfig, kind: str) -> bool:
    """Whether the scores of a model are there; the arguments are those of [`score_model`]."""
    name = system_fingerprint(folder, kind)
    return all(_scores_path(workspace, single, name).exists() for single in _single_contexts(config))


def score_bm25(workspace: Workspace, config: EvaluationConfig) -> Scores:
    """NDCG@10 of BM25, in percent, in the form of [`score_model`]."""
    return context_means(evaluate_bm25(workspace, _single_contexts(config)[0]))


def evaluate_bm25(workspace: Workspace, config: EvaluationConfig) -> Evaluation:
    """Every score of BM25 on word pieces; the configuration has one context, which it does not look at."""
    tokenizer = AutoTokenizer.from_pretrained(model_path("minilm"))
    return evaluate_once(workspace, lambda: BM25(tokenizer, "model"), config, "bm25")


def evaluate_once(
    workspace: Workspace, make_system: Callable[[], Embedder | Ranker], config: EvaluationConfig, name: str
) -> Evaluation:
    """Every score of a system in one context, kept under a name for what it is."""
    path = _scores_path(workspace, config, name)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _evaluate(workspace, make_system(), config).save(path)
    return Evaluation.load(path)


def context_means(evaluation: Evaluation) -> Scores:
    """NDCG@10 of a system, in percent, in the form of [`score_model`]."""
    return {
        row.context or "none": {name: 100 * evaluation.mean(row, retrieval_set=name) for name in evaluation.sets}
        for row in evaluation.rows
    }


def _single_contexts(config: EvaluationConfig) -> list[EvaluationConfig]:
    """The same evaluation for each of its contexts, so that experiments share scores and lose one at most."""
    return [
        replace(
            config,
            contexts=(context,),
            training_domains=config.training_domains if context == "training" else (),
        )
        for context in config.contexts
    ]


def _evaluate(workspace: Workspace, system: Embedder | Ranker, config: EvaluationConfig) -> Evaluation:
    """Evaluates a system in one context."""
    (context,) = config.contexts
    sets, draw = load_sets(workspace, config), {"context_size": config.context_size, "seed": config.seed}
    others = _other_contexts(workspace, config)
    return evaluate([system], sets, contexts=() if others else (context,), other_contexts=others, **draw)


@cache
def _scores_path(workspace: Workspace, config: EvaluationConfig, name: str) -> Path:
    sets = [asdict(each) for each in load_sets(workspace, config)]
    identity = [asdict(config), sets, _other_contexts(workspace, config), source_fingerprint(_SOURCES)]
    return workspace.runs / "scores" / f"{name}-{hash_of(identity)}.json"


def _other_contexts(workspace: Workspace, config: EvaluationConfig) -> dict[str, list[str]]:
    """Documents of the contexts that are not relative to a set."""
    sets = load_sets(workspace, config)
    others = {each.name: list(each.corpus.values()) for each in sets if each.name in config.contexts}
    if "training" in config.contexts:
        others["training"] = training_documents(workspace, config)
    return others


def training_documents(workspace: Workspace, config: EvaluationConfig) -> list[str]:
    """Documents of training pairs, from which the context `training` is drawn."""
    return workspace.load_pairs(config.training_domains, 1000)[0]["document"][:]
