"""Pages on models that differ in architecture, pooling and batches: tables, checks of expectations, a plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .table import Row, markdown_table, mean_and_spread, pivot, seed_means, select, show


Model = tuple[str, str, str]  # architecture, pooling, batches

_BATCH_COLOURS = {"none": "lightgrey", "random": "lightsteelblue", "contextual": "steelblue"}


@dataclass(frozen=True)
class Check:
    """
    An expectation: that one model is at least so many points of NDCG@10 above another.

    Args:
        expectation (`str`):
            In words.
        gains (`tuple[float, ...]`):
            What was measured, seed by seed.
        least (`float`, *optional*, defaults to `0.0`):
            The expected gain.
    """

    expectation: str
    gains: tuple[float, ...]
    least: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it was met with every seed."""
        return min(self.gains) >= self.least

    def __str__(self) -> str:
        mean, spread = mean_and_spread(self.gains)
        return f"{mean:+.1f} ± {spread:.1f}" if len(self.gains) > 1 else f"{mean:+.1f} (one seed)"


def gains(rows: Sequence[Row], first: Model, second: Model, *, contexts: tuple[str, str] | None = None) -> tuple:
    """
    Points that the second model is above the first, seed by seed: means over sets.

    Args:
        rows (`Sequence[Row]`):
            The table.
        first (`Model`), second (`Model`):
            The models.
        contexts (`tuple[str, str]`, *optional*):
            Their contexts. Defaults to the own one, and none for what has no context.
    """
    means = []
    for place, model in enumerate((first, second)):
        found = select(rows, **dict(zip(("architecture", "pooling", "batches"), model, strict=True)))
        found = own_context(found) if contexts is None else select(found, context=contexts[place])
        means.append(list(seed_means(found).values()))
    return tuple(high - low for low, high in zip(*means, strict=True))


def own_context(rows: Sequence[Row]) -> list[Row]:
    """The rows with the set's own context, and those of models that have none."""
    with_context = {model_name(row) for row in rows if row["context"] == "own"}
    return [row for row in rows if row["context"] == ("own" if model_name(row) in with_context else "none")]


def model_name(row: Row) -> str:
    """What a page calls a model."""
    name = {"soft_prompt": "soft prompts, no context", "minilm": "all-MiniLM-L6-v2"}.get(
        str(row["architecture"]), str(row["architecture"])
    )
    pooling = "" if row["pooling"] in ("mean", "plain") else f", {row['pooling']}"
    batches = "" if row["batches"] == "none" else f", {row['batches']} batches"
    return f"{name}{pooling}{batches}"


def score_table(rows: Sequence[Row]) -> str:
    """Scores on all sets, with the own context."""
    header, lines = pivot(own_context(rows), model_name, "set")
    return markdown_table(["model", *header], lines)


def context_table(rows: Sequence[Row]) -> str:
    """Means over sets, by context, of what was shown several."""
    contexts = list(dict.fromkeys(row["context"] for row in rows if row["context"] != "none")) + ["none"]
    lines = []
    for name in dict.fromkeys(model_name(row) for row in rows if row["context"] == "foreign"):
        own = [row for row in rows if model_name(row) == name]
        means = [seed_means(select(own, context=context)).values() for context in contexts]
        lines.append([name, *(show(values) if values else "" for values in means)])
    return markdown_table(["model", *contexts], lines)


def check_table(checks: Sequence[Check]) -> str:
    """Expectations and what was measured."""
    lines = [[check.expectation, check, "yes" if check.holds else "no"] for check in checks]
    return markdown_table(["expected", "measured", "holds for every seed"], lines)


def plot_means(rows: Sequence[Row]) -> Figure:
    """Bars of the means over sets, coloured by the batches of the training, with a point for each seed."""
    rows = own_context(rows)
    batches = {model_name(row): row["batches"] for row in rows}
    names = list(batches)
    seeds = [list(seed_means(row for row in rows if model_name(row) == name).values()) for name in names]
    figure = Figure(figsize=(7, 0.28 * len(names) + 1))
    axes = figure.subplots()
    axes.barh(names, [fmean(values) for values in seeds], color=[_BATCH_COLOURS[batches[name]] for name in names])
    for place, values in enumerate(seeds):
        axes.plot(values, [place] * len(values), "k.", markersize=4)
    handles = [
        Patch(color=colour, label="not trained" if name == "none" else f"{name} batches")
        for name, colour in _BATCH_COLOURS.items()
        if name in batches.values()
    ]
    axes.legend(handles=handles, loc="lower right", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=max(0.0, min(value for values in seeds for value in values) - 5))
    axes.set_xlabel("NDCG@10, mean over sets (points: seeds)")
    return figure
