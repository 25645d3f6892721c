"""F15 and F16: how many layers the first stage needs, and how to spend a fixed number of context tokens."""

from dataclasses import replace

from .main_table import EVALUATION, short_run, short_setting
from .runner.experiment import Experiment, Page, Setting
from .runner.sweep import sweep
from .runner.table import Row, markdown_table, pivot, seed_means, select, show


LAYERS = (1, 2, 3)
TOKENS = (32, 16, 8)  # of a context document
NUM_TOKENS = 1024  # of all of them
OWN_AND_NONE = replace(EVALUATION, contexts=("own", "none"))


def run_layers(setting: Setting) -> list[Row]:
    """T1's model in prefix attention, with fewer layers in its first stage."""
    runs = {short_run(first_stage_layers=layers): {"layers": layers} for layers in LAYERS}
    return sweep(setting, runs, OWN_AND_NONE, ways=("contextual",))


def report_layers(rows: list[Row]) -> Page:
    """A line for each number of layers."""
    values = sorted({row["layers"] for row in rows})
    seeds = {value: seed_means(select(rows, layers=value, context="own")).values() for value in values}
    finding = "NDCG@10 by layers of the first stage: " + ", ".join(
        f"{value}: {show(seeds[value])}" for value in values
    )
    text = f"""## Setting

T1's model in prefix attention with mean pooling and contextual batches, {short_setting()}. The
second stage has three layers. ± is the standard deviation over seeds of the mean over sets.

{_table(rows, "layers")}
## Against the paper

In the paper, the number of layers changes the training accuracy by less than one percent."""
    return Page(f"{finding}.", text)


def run_tokens(setting: Setting) -> list[Row]:
    """Few long context documents or many short ones."""
    rows = []
    for tokens in TOKENS:
        config = short_run(context_size=NUM_TOKENS // tokens, context_max_length=tokens)
        evaluation = replace(OWN_AND_NONE, context_size=config.context_size)
        rows += sweep(setting, {config: {"tokens": tokens}}, evaluation, ways=("contextual",))
    return rows


def report_tokens(rows: list[Row]) -> Page:
    """A line for each number of tokens."""
    values = sorted({row["tokens"] for row in rows})
    own = select(rows, context="own")
    sets = list(dict.fromkeys(row["set"] for row in own))
    best = {}
    for name in sets:
        means = {value: sum(row["ndcg@10"] for row in select(own, set=name, tokens=value)) for value in values}
        best[name] = max(means, key=means.get)
    finding = "Best number of tokens of a context document: " + ", ".join(
        f"{value} on {sum(each == value for each in best.values())} of {len(sets)} sets" for value in values
    )
    text = f"""## Setting

T1's model in prefix attention with mean pooling and contextual batches, {short_setting()}.
In training, all context documents together have {NUM_TOKENS:,} tokens. At test time the number of documents is the
same, and each is read up to {EVALUATION.max_length} tokens.

{_table(rows, "tokens")}
## Against the paper

In the paper, the best number differs between data sets."""
    return Page(f"{finding}.", text)


def _table(rows: list[Row], column: str) -> str:
    header, lines = pivot(select(rows, context="own"), lambda row: str(row[column]), "set")
    for line in lines:
        line.append(
            show(seed_means(row for row in select(rows, context="none") if str(row[column]) == line[0]).values())
        )
    return markdown_table([column, *header, "mean without context"], lines)


LAYERS_EXPERIMENT = Experiment(
    name="F15",
    title="Layers of the first stage",
    claim="The number of layers of the first stage hardly matters.",
    minutes=12,
    run=run_layers,
    report=report_layers,
)
TOKENS_EXPERIMENT = Experiment(
    name="F16",
    title="Tokens of a context document at a fixed total",
    claim="The best length of a context document depends on the set.",
    minutes=12,
    run=run_tokens,
    report=report_tokens,
)
