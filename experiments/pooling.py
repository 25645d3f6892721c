"""pooling: frequencies of the context in training and in use, or in use alone."""

from main_table import EVALUATION, short_run, short_setting
from runner.comparison import Check, check_table
from runner.experiment import Experiment, Page, Setting
from runner.scoring import FREQUENCY_SCALE
from runner.sweep import sweep
from runner.table import Row, markdown_table, seed_gains, seed_means, select, show


CONTEXTS = ("own", "foreign", "none")
RELATIVE_SCALE = 0.05  # as in the recipe of `make train`
TRAINED = {
    "mean": {"pooling": "mean"},
    "context frequency": {"pooling": "context_frequency", "frequency_scale": FREQUENCY_SCALE},
    "relative frequency": {"pooling": "relative_frequency", "frequency_scale": RELATIVE_SCALE},
}


def run(setting: Setting) -> list[Row]:
    """T1's model in prefix attention, trained with each pooling; that of the mean also pooled by frequency in use."""
    runs = {
        short_run(architecture="prefix", **fields): {"trained": name, "pooling": name}
        for name, fields in TRAINED.items()
    }
    return sweep(setting, runs, EVALUATION)


def report(rows: list[Row]) -> Page:
    """Means by context, and what frequencies in training are worth."""
    models = list(dict.fromkeys((row["trained"], row["pooling"]) for row in rows))
    means = {
        (*model, context): seed_means(select(rows, trained=model[0], pooling=model[1], context=context))
        for model in models
        for context in CONTEXTS
    }
    lines = [[*model, *(show(means[*model, context].values()) for context in CONTEXTS)] for model in models]

    in_use = means["mean", "frequency-pooled", "own"]
    gains = {name: seed_gains(in_use, means[name, name, "own"]) for name in list(TRAINED)[1:]}
    checks = [
        Check(f"trained and used with {name}: above the mean with context frequency in use alone", gains[name])
        for name in gains
    ]
    shown = ", ".join(f"{check} trained with {name}" for name, check in zip(gains, checks, strict=True))
    checks += [
        Check(f"{' / '.join(model)}: own above foreign", seed_gains(means[*model, "foreign"], means[*model, "own"]))
        for model in models
    ]
    text = f"""## Setting

T1's model in prefix attention from contextual batches, {short_setting()}, on T1's sets. Context
frequency has `a = {FREQUENCY_SCALE}`, relative frequency `a = {RELATIVE_SCALE}`, as in the recipe of `make train`.
*frequency-pooled* in use is context frequency on the weights that were trained with the mean; with relative frequency
it differs in the formula too, and not in the training alone. ± is the standard deviation over seeds of the mean over
sets.

{markdown_table(["trained with", "in use", *CONTEXTS], lines)}
## What was expected

The paper pools by the mean. A model that is trained with the frequencies could learn what to leave to them.

{check_table(checks)}"""
    finding = (
        "Points of NDCG@10 above a model that was trained with the mean and has context frequency in use alone: "
        f"{shown}."
    )
    return Page(finding, text)


EXPERIMENT = Experiment(
    name="pooling",
    title="Frequencies in training, or in use alone",
    claim="A model that is trained with the frequencies of the context makes more of them.",
    minutes=20,
    run=run,
    report=report,
)
