"""F9: mined hard negatives in addition to the negatives of contextual batches."""

from statistics import fmean

from matplotlib.figure import Figure

from .main_table import EVALUATION, short_run, short_setting
from .runner.experiment import Experiment, Page, Setting
from .runner.sweep import sweep
from .runner.table import Row, markdown_table, pivot, seed_means, select, show
from .runner.training import read_training


COUNTS = (0, 1, 4)


def run(setting: Setting) -> list[Row]:
    """T1's biencoder from contextual batches, with more and more mined negatives for each pair."""
    runs = {short_run(architecture="biencoder", mined_negatives=count): {"negatives": count} for count in COUNTS}
    rows = sweep(setting, runs, EVALUATION, ways=("plain",))
    accuracies = {name: read_training(setting.workspace.runs / name)["accuracy"] for name in {r["run"] for r in rows}}
    return [{**row, "accuracy": accuracies[row["run"]]} for row in rows]


def report(rows: list[Row]) -> Page:
    """A line for each number of negatives, and a curve."""
    counts = sorted({row["negatives"] for row in rows})
    seeds = {count: list(seed_means(select(rows, negatives=count)).values()) for count in counts}
    header, lines = pivot(rows, lambda row: str(row["negatives"]), "set")
    for count, line in zip(counts, lines, strict=True):
        line.append(f"{fmean(row['accuracy'] for row in select(rows, negatives=count)):.0%}")
    figure = Figure(figsize=(5, 3.5))
    axes = figure.subplots()
    axes.plot(counts, [fmean(seeds[count]) for count in counts], color="steelblue")
    for count in counts:
        axes.plot([count] * len(seeds[count]), seeds[count], "k.", markersize=4)
    axes.set_xticks(counts)
    axes.set_xlabel("mined negatives of each pair (points: seeds)")
    axes.set_ylabel("NDCG@10, mean over sets")
    gains = [many - none for none, many in zip(seeds[counts[0]], seeds[counts[-1]], strict=True)]
    finding = (
        "NDCG@10 by mined negatives of each pair: "
        + ", ".join(f"{count}: {show(seeds[count])}" for count in counts)
        + f"; {counts[-1]} improve it by {show(gains)} over {counts[0]}."
    )
    text = f"""## Setting

The biencoder of T1 from contextual batches with the filter, on T1's pairs and sets, {short_setting()}.
The negatives of a pair are the documents of its domain with the highest TF-IDF score for its query below its own
document's score, so the filter removes none of them for that query. They are negatives of all queries of the batch. A
step reads 64 pairs in all runs, plus the mined negatives. *accuracy*: share of the training queries whose own document
scores highest. ± is the standard deviation over seeds of the mean over sets.

{markdown_table(["mined negatives", *header, "accuracy"], lines)}
## Against the paper

In the paper's supervised training, with the negatives of its data, more negatives mostly lower the scores."""
    return Page(finding, text, {"negatives": figure})


EXPERIMENT = Experiment(
    name="F9",
    title="Mined hard negatives in contextual batches",
    claim="Contextual batches need no mined negatives: more of them do not help.",
    minutes=20,
    run=run,
    report=report,
)
