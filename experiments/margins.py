"""margins: the filter's margin in points of the score, or as a share of the positive's score."""

from statistics import fmean

from matplotlib.figure import Figure

from .main_table import EVALUATION, short_run, short_setting
from .runner.experiment import Experiment, Page, Setting
from .runner.sweep import sweep
from .runner.table import Row, markdown_table, pivot, seed_means, show
from .runner.training import read_training


# In this order each relative margin leaves out about as many negatives as the absolute one in its place, but for the
# second: no margin is the same in both, and -0.05 is the customary one.
ABSOLUTE = (-0.1, 0.0)
RELATIVE = (-0.3, -0.05)


def run(setting: Setting) -> list[Row]:
    """T1's biencoder from contextual batches, with several margins and without the filter."""
    fields = [("off", 0.0, {"filters": False})]
    fields += [("absolute", margin, {"filter_margin": margin}) for margin in ABSOLUTE]
    fields += [("relative", margin, {"filter_relative_margin": margin}) for margin in RELATIVE]
    runs = {
        short_run(architecture="biencoder", **changed): {"filter": kind, "margin": margin}
        for kind, margin, changed in fields
    }
    rows = sweep(setting, runs, EVALUATION, ways=("plain",))
    shares = {
        name: read_training(setting.workspace.runs / name)["filtered_share"] for name in {r["run"] for r in rows}
    }
    return [{**row, "filtered_share": shares[row["run"]]} for row in rows]


def report(rows: list[Row]) -> Page:
    """A line for each filter, and NDCG by the filtered share."""
    names = list(dict.fromkeys(map(filter_name, rows)))
    found = {name: [row for row in rows if filter_name(row) == name] for name in names}
    seeds = {name: list(seed_means(found[name]).values()) for name in names}
    shares = {name: fmean(row["filtered_share"] for row in found[name]) for name in names}
    header, lines = pivot(rows, filter_name, "set")
    for line in lines:
        line.insert(1, f"{shares[line[0]]:.1%}")
    figure = Figure(figsize=(5.5, 4))
    axes = figure.subplots()
    for kind in ("off", "absolute", "relative"):
        own = [name for name in names if found[name][0]["filter"] == kind]
        axes.plot([shares[name] for name in own], [fmean(seeds[name]) for name in own], "o", label=kind)
    for name in names:
        axes.annotate(str(found[name][0]["margin"]), (shares[name], fmean(seeds[name])), fontsize=7)
    axes.set_xlabel("filtered share of the negatives")
    axes.set_ylabel("NDCG@10, mean over sets")
    axes.legend(title="margin")
    best = {
        kind: max((name for name in names if found[name][0]["filter"] == kind), key=lambda name: fmean(seeds[name]))
        for kind in ("off", "absolute", "relative")
    }
    finding = "NDCG@10 of the best of each kind: " + ", ".join(
        f"{name} {show(seeds[name])} ({shares[name]:.0%} filtered)" for name in best.values()
    )
    text = f"""## Setting

The biencoder of T1 from contextual batches, on T1's pairs and sets, {short_setting()}. The
filter removes a document from a query's negatives if its score is at least the positive's score plus the margin. The
margin is a difference in TF-IDF cosine (absolute) or a share of the positive's score (relative). ± is the standard
deviation over seeds of the mean over sets.

{markdown_table(["filter", "filtered", *header], lines)}
## What was expected

The paper has an absolute margin and does not vary it. With an absolute margin, a positive with a low score keeps few
negatives, so a relative margin should suit pairs of all scores better."""
    return Page(f"{finding}.", text, {"shares": figure})


def filter_name(row: Row) -> str:
    """What the page calls a filter."""
    return "filter off" if row["filter"] == "off" else f"{row['filter']} margin {row['margin']:+.2f}"


EXPERIMENT = Experiment(
    name="margins",
    title="The filter's margin, absolute or relative",
    claim="A margin relative to the positive's score filters better than an absolute margin.",
    minutes=15,
    run=run,
    report=report,
)
