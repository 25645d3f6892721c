"""dropout: what training some steps without a context gives to use without a context, and what it costs with one."""

from main_table import EVALUATION, short_run, short_setting
from runner.comparison import Check, check_table
from runner.experiment import Experiment, Page, Setting
from runner.sweep import sweep
from runner.table import Row, markdown_table, seed_gains, seed_means, select, show


PROBABILITIES = (0.0, 0.1, 0.3)


def run(setting: Setting) -> list[Row]:
    """T1's model in prefix attention with frequency pooling, and two that see no context in some of their steps."""
    runs = {
        short_run(architecture="prefix", context_dropout=dropout): {"dropout": dropout} for dropout in PROBABILITIES
    }
    return sweep(setting, runs, EVALUATION, ways=("contextual, frequency-pooled",))


def report(rows: list[Row]) -> Page:
    """Means by context, and the differences that matter."""
    values = sorted({row["dropout"] for row in rows})
    contexts = ("own", "foreign", "none")
    means = {
        (value, context): seed_means(select(rows, dropout=value, context=context))
        for value in values
        for context in contexts
    }
    lines = [[value, *(show(means[value, context].values()) for context in contexts)] for value in values]

    costs = {
        value: Check(f"{value}: own above none", seed_gains(means[value, "none"], means[value, "own"]))
        for value in values
    }
    checks = [*costs.values()]
    for value in values[1:]:
        checks += [
            Check(
                f"{value}: without a context above no dropout", seed_gains(means[0.0, "none"], means[value, "none"])
            ),
            Check(
                f"{value}: in the own context at most 0.3 below",
                seed_gains(means[0.0, "own"], means[value, "own"]),
                -0.3,
            ),
            Check(f"{value}: own above foreign", seed_gains(means[value, "foreign"], means[value, "own"])),
        ]
    finding = (
        "Points of NDCG@10 that use without a context costs, by the share of steps trained without: "
        + ", ".join(f"{value}: {check}" for value, check in costs.items())
    )
    text = f"""## Setting

T1's model in prefix attention with context-frequency pooling in use, from contextual batches,
{short_setting()}, on T1's sets. With this probability a step of training has no context at all; that the
null embedding stands in for single documents is the same in all runs. ± is the standard deviation over seeds of the
mean over sets.

{markdown_table(["dropout", *contexts], lines)}
## What was expected

The paper drops single documents, and not the whole context.

{check_table(checks)}"""
    return Page(f"{finding}.", text)


EXPERIMENT = Experiment(
    name="dropout",
    title="Steps without a context",
    claim="A model that sees no context in some steps of its training is better without one, at no cost with one.",
    minutes=15,
    run=run,
    report=report,
)
