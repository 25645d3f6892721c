"""F1, F2, F3, F10 and F11: batch size by cluster size, with and without the filter, at the same number of pairs."""

from itertools import product
from statistics import fmean

from matplotlib.figure import Figure
from scipy.stats import pearsonr

from .main_table import EVALUATION, short_run, short_setting
from .runner.experiment import Experiment, Page, Setting
from .runner.sweep import sweep
from .runner.table import Row, markdown_table, seed_means, select, show
from .runner.training import read_training


# Two lines through the sizes of T1, not a whole grid.
SIZES = ((64, 16), (64, 64), (64, 1024), (16, 64))  # of batches and of clusters
NUM_PAIRS = short_run().steps * short_run().batch_size


def run(setting: Setting) -> list[Row]:
    """Trains a biencoder for each size and filter."""
    runs = {}
    for (batch_size, cluster_size), filters in product(SIZES, (True, False)):
        config = short_run(
            architecture="biencoder",
            batch_size=batch_size,
            cluster_size=cluster_size,
            filters=filters,
            steps=NUM_PAIRS // batch_size,
            warmup_steps=NUM_PAIRS // batch_size // 10,
        )
        runs[config] = {
            "batch_size": batch_size,
            "cluster_size": cluster_size,
            "filter": "on" if filters else "off",
        }
    # Quick runs of several sizes are one and the same run.
    rows = sweep(setting, runs, EVALUATION, ways=("plain",))
    facts = {name: read_training(setting.workspace.runs / name) for name in {row["run"] for row in rows}}
    return [
        {**row, "hardness": facts[row["run"]]["hardness"], "filtered_share": facts[row["run"]]["filtered_share"]}
        for row in rows
    ]


def report(rows: list[Row]) -> Page:
    """Two tables, a plot against hardness, correlations."""
    batch_sizes = sorted({row["batch_size"] for row in rows})
    cluster_sizes = sorted({row["cluster_size"] for row in rows})
    tables, points = [], {"on": [], "off": []}
    for state in points:
        lines = []
        for cluster_size in cluster_sizes:
            cells = []
            for batch_size in batch_sizes:
                found = select(rows, batch_size=batch_size, cluster_size=cluster_size, filter=state)
                means = list(seed_means(found).values())
                cells.append(show(means) if means else "")
                if means:
                    points[state].append((fmean(row["hardness"] for row in found), fmean(means)))
            lines.append([cluster_size, *cells])
        header = ["cluster size", *(f"batches of {size}" for size in batch_sizes)]
        tables.append(f"### Filter {state}\n\n{markdown_table(header, lines)}")
    figure = Figure(figsize=(5.5, 4))
    axes = figure.subplots()
    correlations = {}
    for state, pairs in points.items():
        hardness, scores = zip(*pairs, strict=True)
        axes.scatter(hardness, scores, label=f"filter {state}")
        correlations[state] = pearsonr(hardness, scores)[0] if len(set(hardness)) > 2 else float("nan")
    axes.set_xlabel("hardness of the batches")
    axes.set_ylabel("NDCG@10, mean over sets")
    axes.legend()
    scores = {state: fmean(score for _, score in pairs) for state, pairs in points.items()}
    finding = (
        f"The filter changes NDCG@10 by {scores['on'] - scores['off']:+.1f} points on the mean of all sizes. Hardness "
        f"and NDCG@10 correlate {correlations['on']:+.2f} with it and {correlations['off']:+.2f} without."
    )
    text = f"""## Setting

The biencoder of T1 on T1's pairs and sets, {short_setting()}. Smaller
batches make more steps, so every run sees {NUM_PAIRS:,} pairs. ± is the standard deviation over seeds.

{chr(10).join(tables)}
## Against the paper

In the paper, hardness correlates with NDCG. With the filter, small clusters are best and large batches add little.
Without it, larger clusters and batches are better."""
    return Page(finding, text, {"hardness": figure})


EXPERIMENT = Experiment(
    name="F2",
    title="Batch size, cluster size and the filter",
    claim="Harder batches give better models, and the filter makes small clusters useful.",
    minutes=30,
    run=run,
    report=report,
)
