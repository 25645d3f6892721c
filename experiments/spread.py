"""spread: context documents at random or spread over the corpus by k-means, for T1's model in prefix attention."""

from dataclasses import replace
from itertools import product
from statistics import fmean

from contexts import prefix_runs
from main_table import EVALUATION
from runner.comparison import Check, check_table, model_name
from runner.experiment import Experiment, Page, Setting
from runner.sweep import sweep
from runner.table import Row, markdown_table, mean_and_spread, seed_means, select, show


CHOICES = ("drawn", "spread")
NUM_DRAWS = 3


def run(setting: Setting) -> list[Row]:
    """T1's model in prefix attention from contextual batches in several draws of both kinds."""
    evaluation = replace(
        EVALUATION, contexts=tuple(f"{choice}-{draw}" for choice, draw in product(CHOICES, range(NUM_DRAWS)))
    )
    rows = []
    for row in sweep(setting, prefix_runs(), evaluation):
        choice, _, draw = row["context"].partition("-")
        rows.append({**row, "choice": choice, "draw": int(draw)})
    return rows


def report(rows: list[Row]) -> Page:
    """Means of both kinds, how far their draws lie apart, and the gain."""
    lines, checks = [], []
    for name in dict.fromkeys(model_name(row) for row in rows):
        own = [row for row in rows if model_name(row) == name]
        drawn, spread = (select(own, choice=choice) for choice in CHOICES)
        gains = [high - low for low, high in zip(_seeds(drawn), _seeds(spread), strict=True)]
        checks.append(Check(f"{name}: spread above drawn", tuple(gains)))
        lines.append(
            [name, show(_seeds(drawn)), f"{_draws(drawn):.2f}", show(_seeds(spread)), f"{_draws(spread):.2f}"]
        )
    finding = "Points of NDCG@10 that spread documents are worth over drawn ones: " + ", ".join(
        f"{check} ({check.expectation.partition(':')[0]})" for check in checks
    )
    header = ["model", "drawn", "over draws", "spread", "over draws"]
    text = f"""## Setting

T1's model in prefix attention from contextual batches on T1's sets, {EVALUATION.context_size} documents of the set
itself. *drawn*: at random; *spread*: the middle documents of as many k-means clusters of TF-IDF vectors. ± is the
standard deviation over seeds of the training, of the mean over sets and {len({row["draw"] for row in rows})} draws;
*over draws* is the standard deviation over draws of the mean over sets, in the mean of the seeds.

{markdown_table(header, lines)}
## What was expected

The paper draws at random. Spread documents show rare topics too, but not how frequent words are.

{check_table(checks)}"""
    return Page(f"{finding}.", text)


def _seeds(rows: list[Row]) -> list[float]:
    return list(seed_means(rows).values())


def _draws(rows: list[Row]) -> float:
    """Standard deviation over the draws of a seed, in the mean of the seeds."""
    spreads = []
    for seed in {row["seed"] for row in rows}:
        draws = {row["draw"] for row in rows}
        means = [fmean(row["ndcg@10"] for row in select(rows, seed=seed, draw=draw)) for draw in draws]
        spreads.append(mean_and_spread(means)[1])
    return fmean(spreads)


EXPERIMENT = Experiment(
    name="spread",
    title="Context documents at random or spread over the corpus",
    claim="Documents that are spread over the corpus are a better context than random ones.",
    minutes=15,
    run=run,
    report=report,
)
