"""compare: the model of `make train` compared with a biencoder and a control trained alike, two seeds each."""

from pathlib import Path
from typing import Any

import yaml

from .runner.comparison import Check, check_table, context_table, gains, plot_means, score_table
from .runner.config import DOCSTRINGS, RunConfig
from .runner.experiment import Experiment, Page, Setting
from .runner.sets import EvaluationConfig
from .runner.sweep import sweep, untrained_rows
from .runner.table import Row


NUM_QUERIES = 500  # of each library, or all that it has
RECIPE = Path(__file__).parents[1] / "examples" / "recipes" / "docstrings.yaml"

# What the recipe's arguments are called in a run. Others must have the value that every run here has.
_NAMES = {
    "model": "backbone",
    "context_attention": "architecture",
    "context_size": "context_size",
    "pooling": "pooling",
    "frequency_scale": "frequency_scale",
    "context_source": "context_source",
    "first_stage_layers": "first_stage_layers",
    "cluster_size": "cluster_size",
    "per_device_train_batch_size": "batch_size",
    "max_length": "max_length",
    "max_steps": "steps",
    "learning_rate": "learning_rate",
    "learning_rate_mapping": "learning_rate_mapping",
    "warmup_steps": "warmup_steps",
}
_FIXED = {
    "query_prompt": "",
    "document_prompt": "",
    "data": list(DOCSTRINGS),
    "surrogate": "tfidf",
    "disable_dropout": True,
}
_IDLE = ("output_dir", "logging_steps", "save_steps", "resume_from_checkpoint")


def read_recipe(path: Path = RECIPE) -> RunConfig:
    """The run of a recipe."""
    recipe: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    strange = [
        name
        for name, value in recipe.items()
        if name not in (*_NAMES, *_IDLE) and (name not in _FIXED or _FIXED[name] != value)
    ]
    if strange:
        raise ValueError(
            f"The recipe `{path.name}` sets {', '.join(strange)} to what the runs of this comparison cannot follow. "
            "Add it to `RunConfig` and to the names in `compare.py`."
        )
    missing = sorted({*_NAMES, *_FIXED} - set(recipe))
    if missing:
        raise ValueError(f"The recipe `{path.name}` leaves {', '.join(missing)} to a default. Write it down there.")
    recipe["learning_rate_mapping"] = tuple(recipe["learning_rate_mapping"].items())
    return RunConfig(**{ours: recipe[theirs] for theirs, ours in _NAMES.items()}, domains=DOCSTRINGS)


def runs() -> dict[RunConfig, Row]:
    """The recipe's model, and two that differ from it in their architecture only."""
    recipe = read_recipe()
    configs = [
        recipe,
        *(
            RunConfig(**{**vars(recipe), "architecture": architecture, "pooling": "mean"})
            for architecture in ("soft_prompt", "biencoder")
        ),
    ]
    return {
        config: {
            "architecture": config.architecture,
            "pooling": config.pooling.replace("_", " "),
            "batches": "contextual",
        }
        for config in configs
    }


def evaluation() -> EvaluationConfig:
    """The held-out libraries, as at the end of `make train`."""
    recipe = read_recipe()
    sizes = {"context_size": recipe.context_size, "max_length": recipe.max_length}
    return EvaluationConfig(DOCSTRINGS, max_queries=NUM_QUERIES, **sizes)


def run(setting: Setting) -> list[Row]:
    """Trains and scores the models, and scores what needs no training."""
    return sweep(setting, runs(), evaluation()) + untrained_rows(setting, evaluation(), read_recipe())


def report(rows: list[Row]) -> Page:
    """Tables, checks and a sentence."""
    recipe = read_recipe()
    ours = recipe.architecture, recipe.pooling.replace("_", " "), "contextual"
    biencoder = "biencoder", "mean", "contextual"
    checks = [
        Check("above the biencoder trained alike", gains(rows, biencoder, ours)),
        Check("above soft prompts without a context", gains(rows, ("soft_prompt", "mean", "contextual"), ours)),
        Check("own context at least 1.0 above foreign", gains(rows, ours, ours, contexts=("foreign", "own")), 1.0),
        Check("own context above none", gains(rows, ours, ours, contexts=("none", "own"))),
        Check("above the trained biencoder, whitened", gains(rows, ("biencoder", "whitened", "contextual"), ours)),
        Check(
            "above the trained biencoder, frequency-pooled",
            gains(rows, ("biencoder", "frequency-pooled", "contextual"), ours),
        ),
    ]
    text = f"""## Setting

The recipe `examples/recipes/docstrings.yaml`, and the same recipe with other architectures: {recipe.steps} steps of
{recipe.batch_size} pairs. The test has {NUM_QUERIES} queries of each held-out library and cuts texts to
{recipe.max_length} tokens. ± is the standard deviation over seeds of the mean over libraries. *Soft prompts* is the
control: it learns one vector for each context document and never sees a context.

## NDCG@10

Models with a context use the library's own documents.

{score_table(rows)}
## The context

{context_table(rows)}
## Expectations

{check_table(checks)}"""
    finding = (
        f"On unseen libraries the model is {checks[0]} points of NDCG@10 above a biencoder trained alike and "
        f"{checks[1]} above soft prompts without a context. The library's own context is {checks[2]} above another "
        f"library's and {checks[3]} above none."
    )
    return Page(finding, text, {"ndcg": plot_means(rows)})


EXPERIMENT = Experiment(
    name="compare",
    title="The model of `make train` beside models trained alike",
    claim="The gain comes from the context, not from training or from more vectors.",
    minutes=60,
    run=run,
    report=report,
    needs="docstrings",
)
