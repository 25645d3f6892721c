"""Scores models on retrieval sets, unless it was done before. No run's training depends on this."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from sentence_transformers import SentenceTransformer

from cde_hf import (
    BM25,
    CDEEmbedder,
    Evaluation,
    FrequencyPoolingEmbedder,
    SentenceTransformerEmbedder,
    WhitenedEmbedder,
    evaluate,
)
from cde_hf.retrieval.systems import Embedder, Ranker

from .config import file_fingerprint, hash_of, source_fingerprint
from .sets import EvaluationConfig, load_sets
from .workspace import Workspace


Scores = dict[str, dict[str, float]]  # by context and by set

_SOURCE_FOLDERS = ("retrieval", "modeling")


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

    def make_system() -> Embedder:
        model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
        model.max_seq_length = config.max_length
        if kind == "contextual":
            return CDEEmbedder(model, "model")
        if kind == "frequency-pooled":
            return FrequencyPoolingEmbedder(model, "model")
        plain = SentenceTransformerEmbedder(model, "model")
        return plain if kind == "plain" else WhitenedEmbedder(plain, "model")

    return _score(workspace, make_system, config, _model_name(folder, kind))


def is_scored(workspace: Workspace, folder: str | Path, config: EvaluationConfig, kind: str) -> bool:
    """Whether the scores of a model are there; the arguments are those of [`score_model`]."""
    return _scores_path(workspace, config, _model_name(folder, kind)).exists()


def score_bm25(workspace: Workspace, config: EvaluationConfig) -> Scores:
    """NDCG@10 of BM25, in percent, in the form of [`score_model`]."""
    return _score(workspace, lambda: BM25("model"), config, "bm25")


def _score(
    workspace: Workspace, make_system: Callable[[], Embedder | Ranker], config: EvaluationConfig, name: str
) -> Scores:
    path = _scores_path(workspace, config, name)
    if not path.exists():
        others = _other_contexts(workspace, config)
        contexts = [context for context in config.contexts if context not in others]
        path.parent.mkdir(parents=True, exist_ok=True)
        evaluate(
            [make_system()],
            load_sets(workspace, config),
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


def _model_name(folder: str | Path, kind: str) -> str:
    fingerprints = [file_fingerprint(Path(folder) / name) for name in ("config.json", "model.safetensors")]
    return f"{kind}-{hash_of(fingerprints)}"


@cache
def _scores_path(workspace: Workspace, config: EvaluationConfig, name: str) -> Path:
    sets = [asdict(each) for each in load_sets(workspace, config)]
    identity = [asdict(config), sets, _other_contexts(workspace, config), source_fingerprint(_SOURCE_FOLDERS)]
    return workspace.runs / "scores" / f"{name}-{hash_of(identity)}.json"


def _other_contexts(workspace: Workspace, config: EvaluationConfig) -> dict[str, list[str]]:
    """Documents of the contexts that are not relative to a set."""
    sets = load_sets(workspace, config)
    others = {each.name: list(each.corpus.values()) for each in sets if each.name in config.contexts}
    if "training" in config.contexts:
        others["training"] = workspace.load_pairs(config.training_domains, 1000)[0]["document"][:]
    return others


def _context_of(system: str) -> str:
    """The context in a row's name, such as `model, own context`."""
    context = system.partition(", ")[2].removesuffix(" context")
    return "none" if context in ("", "no") else context
