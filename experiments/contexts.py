"""T3, F6 and F14: does the content of the context matter? The models of T1 in several contexts, not retrained."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from matplotlib.figure import Figure

from . import main_table
from .runner.comparison import Check, check_table, context_table, gains, model_name
from .runner.config import RunConfig
from .runner.experiment import Experiment, Page, Setting
from .runner.sets import EvaluationConfig
from .runner.sweep import sweep
from .runner.table import Row, markdown_table, mean_and_spread, seed_means, select, show


FORUMS = tuple(
    f"redditforum-{name}"
    for name in ("androidquestions", "askphilosophy", "gis", "grammar", "learnmath", "legaladvice")
)
SIZES = (0, 4, 16, 64)

Runs = dict[RunConfig, Row]


def contextual_runs() -> Runs:
    """T1's models with a context, from contextual batches."""
    return {
        config: factors
        for config, factors in main_table.runs().items()
        if config.has_context and config.batches == "cluster"
    }


def prefix_runs() -> Runs:
    """T1's model in prefix attention, from contextual batches."""
    return {config: factors for config, factors in contextual_runs().items() if config.architecture == "prefix"}


def run_kinds(setting: Setting) -> list[Row]:
    """Own, foreign, random, training documents, none."""
    evaluation = replace(
        main_table.EVALUATION,
        contexts=("own", "foreign", "random", "training", "none"),
        training_domains=main_table.DOMAINS,
    )
    return sweep(setting, contextual_runs(), evaluation)


def report_kinds(rows: list[Row]) -> Page:
    """Means by context, and what the own one is worth."""
    checks = []
    for model in _models(rows):
        for other in ("foreign", "random", "training", "none"):
            name = f"{', '.join(model[:2])}: own above {other}"
            checks.append(Check(name, gains(rows, model, model, contexts=(other, "own"))))
    best = [check for check in checks if check.expectation.startswith("prefix, frequency-pooled")]
    finding = "In prefix attention with frequency pooling, the own context improves NDCG@10 by " + ", ".join(
        f"{check} over {check.expectation.rpartition(' ')[2]}" for check in best
    )
    text = f"""## Setting

T1's models from contextual batches, on T1's sets. *foreign*: documents of the next set. *random*: documents of all
other sets. *training*: documents of the training pairs. ± is the standard deviation over seeds.

{context_table(rows)}
{check_table(checks)}
## Against the paper

In the paper, random documents cost 1.2 points on the mean over all tasks and 2.2 points on retrieval."""
    return Page(f"{finding}.", text)


def run_matrix(setting: Setting) -> list[Row]:
    """Every forum in the context of every forum."""
    return sweep(setting, prefix_runs(), EvaluationConfig(FORUMS, contexts=FORUMS, max_queries=200, max_documents=300))


def report_matrix(rows: list[Row]) -> Page:
    """A matrix for each model."""
    parts, findings, figures = [], [], {}
    for name in dict.fromkeys(model_name(row) for row in rows):
        own = [row for row in rows if model_name(row) == name]
        sets = list(dict.fromkeys(row["set"] for row in own))
        matrix = [
            [fmean(row["ndcg@10"] for row in select(own, set=each, context=other)) for other in sets] for each in sets
        ]
        labels = [each.removeprefix("redditforum-") for each in sets]
        lines = [
            [f"**{label}**", *(f"{value:.1f}" for value in line)] for label, line in zip(labels, matrix, strict=True)
        ]
        parts.append(f"### {name}\n\n{markdown_table(['set, context', *labels], lines)}")
        num_best = sum(line[place] == max(line) for place, line in enumerate(matrix))
        seeds = []
        for seed in sorted({row["seed"] for row in own}):
            part = select(own, seed=seed)
            is_own = [row["ndcg@10"] for row in part if row["set"] == row["context"]]
            foreign = [row["ndcg@10"] for row in part if row["set"] != row["context"]]
            seeds.append(fmean(is_own) - fmean(foreign))
        mean, spread = mean_and_spread(seeds)
        gain = f"{mean:+.1f} ± {spread:.1f} above the mean of the other forums' contexts"
        findings.append(f"{name}: own best on {num_best} of {len(sets)}, {gain}")
        figures[name.replace(",", "").replace(" ", "_")] = _heat_map(matrix, labels)
    text = f"""## Setting

T1's models in prefix attention, on six forums that are not in the training data, 300 documents and 200 queries each.
Lines are sets, columns are contexts. Means over seeds.

{chr(10).join(parts)}
## Against the paper

In the paper, the forum's own context is usually the best, by less than a point of NDCG@10, with some exceptions."""
    return Page("; ".join(findings) + ".", text, figures)


def run_sizes(setting: Setting) -> list[Row]:
    """More and more documents of the own context."""
    rows = []
    for size in SIZES[:2] if setting.is_quick else SIZES:
        contexts = ("own",) if size else ("none",)
        sized = replace(main_table.EVALUATION, contexts=contexts, context_size=size or SIZES[-1])
        rows += [{**row, "size": size} for row in sweep(setting, contextual_runs(), sized)]
    return rows


def report_sizes(rows: list[Row]) -> Page:
    """A curve for each model."""
    sizes = sorted({row["size"] for row in rows})
    figure = Figure(figsize=(5.5, 4))
    axes = figure.subplots()
    lines, findings = [], []
    for name in dict.fromkeys(model_name(row) for row in rows):
        own = [row for row in rows if model_name(row) == name]
        seeds = [list(seed_means(select(own, size=size)).values()) for size in sizes]
        means = [fmean(values) for values in seeds]
        axes.plot(range(len(sizes)), means, marker="o", label=name)
        lines.append([name, *(show(values) for values in seeds)])
        findings.append(f"{name}: {means[0]:.1f} without and {means[-1]:.1f} with {sizes[-1]} documents")
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlabel("context documents")
    axes.set_ylabel("NDCG@10, mean over sets")
    axes.legend(fontsize=7)
    text = f"""## Setting

T1's models from contextual batches on T1's sets, with a growing number of the set's own documents. The null embedding
fills the rest of the context. ± is the standard deviation over seeds.

{markdown_table(["model", *(str(size) for size in sizes)], lines)}
## Against the paper

In the paper, a model works with a partly filled context, works reasonably without one, and works best with a full
one."""
    return Page("; ".join(findings) + ".", text, {"sizes": figure})


def _models(rows: list[Row]) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys((row["architecture"], row["pooling"], row["batches"]) for row in rows))


def _heat_map(matrix: Sequence[Sequence[float]], labels: Sequence[str]) -> Figure:
    """Differences from the own context."""
    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    differences = [[value - line[place] for value in line] for place, line in enumerate(matrix)]
    limit = max(abs(value) for line in differences for value in line) or 1.0
    image = axes.imshow(differences, cmap="RdBu", vmin=-limit, vmax=limit)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("context")
    figure.colorbar(image, label="NDCG@10 above the own context")
    return figure


KINDS = Experiment(
    name="T3",
    title="Own, foreign, random and no context",
    claim="The content of the context matters: replacing it with random documents lowers NDCG@10.",
    minutes=20,
    run=run_kinds,
    report=report_kinds,
)
MATRIX = Experiment(
    name="F6",
    title="Forums in each other's context",
    claim="A forum's own context is usually the best.",
    minutes=10,
    run=run_matrix,
    report=report_matrix,
)
CURVE = Experiment(
    name="F14",
    title="The number of context documents",
    claim="The model works with a partly filled or empty context, and best with a full one.",
    minutes=15,
    run=run_sizes,
    report=report_sizes,
)
