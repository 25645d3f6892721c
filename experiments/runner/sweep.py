"""Trains and scores all runs of an experiment, and scores the baselines that need no training."""

from collections.abc import Mapping
from dataclasses import replace

from tqdm.auto import tqdm

from .config import RunConfig
from .experiment import Setting
from .scoring import BIENCODER_KINDS, Scores, score_bm25, score_model
from .sets import EvaluationConfig
from .table import Row
from .timing import announce
from .training import train_run


# Ways to use a biencoder, and a contextual model.
WAYS, CONTEXTUAL_WAYS = BIENCODER_KINDS, ("contextual", "contextual, frequency-pooled")


def quick_run(config: RunConfig) -> RunConfig:
    """A run of seconds that takes the same paths."""
    return replace(
        config,
        domains=config.domains[:2],
        pairs_per_domain=200,
        layers=2,
        first_stage_layers=min(config.first_stage_layers or 2, 2),
        context_size=4,
        cluster_size=min(config.cluster_size, 32),
        batch_size=8,
        steps=2,
        max_length=16,
        warmup_steps=0,
    )


def quick_evaluation(config: EvaluationConfig) -> EvaluationConfig:
    """A few texts of a few sets."""
    sets = config.sets[:3]
    contexts = tuple(context for context in config.contexts if context not in config.sets[3:])
    sizes = {"context_size": 4, "max_queries": 8, "max_documents": 24, "max_length": 16}
    return replace(config, sets=sets, contexts=contexts, training_domains=config.training_domains[:2], **sizes)


def sweep(
    setting: Setting,
    runs: Mapping[RunConfig, Row],
    evaluation: EvaluationConfig,
    *,
    ways: tuple[str, ...] | None = None,
) -> list[Row]:
    """
    Trains runs and scores them.

    Args:
        setting (`Setting`):
            Data, number of seeds, and whether it is only a test.
        runs (`Mapping[RunConfig, Row]`):
            The runs of one seed, each with its factors: what the table is to call it.
        evaluation (`EvaluationConfig`):
            How to score them.
        ways (`tuple[str, ...]`, *optional*):
            Ways to use the models, as [`score_model`] calls them. Defaults to all that the architecture has: what
            pools by the mean is also scored with context-frequency pooling, and biencoders whitened.

    Returns:
        `list[Row]`: For each run, seed, context and set a row.
    """
    if setting.is_quick:
        runs = {quick_run(config): factors for config, factors in runs.items()}
        evaluation = quick_evaluation(evaluation)
    seeded = [
        (replace(config, seed=seed), factors) for seed in range(setting.num_seeds) for config, factors in runs.items()
    ]
    announce(
        setting.workspace, [(config, contexts_of(config, evaluation), ways or ways_of(config)) for config, _ in seeded]
    )
    rows = []
    for config, factors in tqdm(seeded, desc="Runs", unit="run"):
        folder = train_run(setting.workspace, config)
        columns = {"run": folder.name, "seed": config.seed, **factors}
        for way in ways or ways_of(config):
            scores = score_model(setting.workspace, folder, contexts_of(config, evaluation), way)
            changed = way.removeprefix("contextual").removeprefix(", ")
            rows += score_rows(scores, columns | ({"pooling": changed} if changed not in ("", "plain") else {}))
    return rows


def untrained_rows(setting: Setting, evaluation: EvaluationConfig, start: RunConfig) -> list[Row]:
    """Rows of BM25, of the encoder that a run starts from, and of the complete encoder if the run cuts it."""
    if setting.is_quick:
        evaluation, start = quick_evaluation(evaluation), quick_run(start)
    workspace, rows = setting.workspace, []
    columns = {"run": "untrained", "seed": 0, "architecture": "BM25", "pooling": "mean", "batches": "none"}
    rows += score_rows(score_bm25(workspace, evaluation), columns)
    encoders = {start.backbone: replace(start, layers=None)}
    if start.layers is not None:
        encoders = {"start": start, **encoders}
    for name, config in encoders.items():
        for way in WAYS:
            own = replace(evaluation, contexts=("own",))
            scores = score_model(workspace, workspace.load_encoder(config), own, way)
            rows += score_rows(scores, {**columns, "architecture": name, "pooling": way})
    return rows


def ways_of(config: RunConfig) -> tuple[str, ...]:
    """The ways to use a run's model, as [`score_model`] calls them."""
    if config.architecture == "biencoder":
        return WAYS
    return CONTEXTUAL_WAYS if config.has_context and config.pooling == "mean" else CONTEXTUAL_WAYS[:1]


def contexts_of(config: RunConfig, evaluation: EvaluationConfig) -> EvaluationConfig:
    """
    The evaluation of a run. A biencoder has the own context or none. The control with soft prompts never sees a
    context, as in its training.
    """
    contexts = {"biencoder": ("own",), "soft_prompt": ("none",)}.get(config.architecture, evaluation.contexts)
    return replace(evaluation, contexts=contexts)


def score_rows(scores: Scores, columns: Row) -> list[Row]:
    """Rows of a table from the scores of one system."""
    return [
        {**columns, "context": context, "set": name, "ndcg@10": score}
        for context, sets in scores.items()
        for name, score in sets.items()
    ]
