"""lexical: what a sketch of the words gives beside the dense vector, with own, foreign and no context."""

from dataclasses import replace

from main_table import EVALUATION, short_run, short_setting
from runner.comparison import Check, check_table, context_table, gains, plot_means, score_table
from runner.experiment import Experiment, Page, Setting
from runner.scoring import FREQUENCY_SCALE, LEXICAL_SIZE, score_bm25, score_model
from runner.sweep import quick_evaluation, quick_run, score_rows, sweep
from runner.table import Row
from runner.training import save_start

from cde_hf import CDEConfig


WAYS = ("contextual", "contextual, frequency-pooled", "contextual, lexical")
MINILM, TRAINED = ("minilm", "none"), ("prefix", "contextual")  # architecture and batches of the models


def run(setting: Setting) -> list[Row]:
    """MiniLM in prefix attention without training, T1's model in prefix attention, and BM25, on T1's sets."""
    runs = {short_run(): {"architecture": "prefix", "pooling": "mean", "batches": "contextual"}}
    rows = sweep(setting, runs, EVALUATION, ways=WAYS)
    config, evaluation = replace(short_run(), layers=None, first_stage_layers=1), EVALUATION
    if setting.is_quick:
        config, evaluation = quick_run(config), quick_evaluation(evaluation)
    folder = save_start(setting.workspace, config)
    columns = {"run": "untrained", "seed": 0, "architecture": "BM25", "pooling": "mean", "batches": "none"}
    rows += score_rows(score_bm25(setting.workspace, evaluation), columns)
    columns |= {"run": folder.name, "architecture": "minilm"}
    for way in WAYS:
        pooling = way.removeprefix("contextual").removeprefix(", ") or "mean"
        rows += score_rows(score_model(setting.workspace, folder, evaluation, way), {**columns, "pooling": pooling})
    return rows


def report(rows: list[Row]) -> Page:
    """Tables, a plot, and what the lexical part is worth."""
    checks = check_claims(rows)
    shown = [check for check in checks if not check.expectation.endswith("plain mean")]
    finding = "Points of NDCG@10: " + ", ".join(f"{check.expectation} {check}" for check in shown)
    text = f"""## Setting

T1's sets, cut as there. *prefix* is T1's model in prefix attention, {short_setting()};
*all-MiniLM-L6-v2* is not trained, and its attention to the context therefore adds nothing. *lexical*: the same weights
with context-frequency pooling (`a = {FREQUENCY_SCALE}`) and, behind the dense vector, a sketch of the text's words of
{LEXICAL_SIZE} dimensions with `lexical_weight={CDEConfig().lexical_weight}`, the words weighed by their rarity in the
same {EVALUATION.context_size} context documents. ± is the standard deviation over seeds of the mean over sets.

## NDCG@10

What has a context has the set's own one.

{score_table(rows)}
## The context

Mean over the sets. *foreign* is the context of the next set in the list.

{context_table(rows)}
## What was expected

The paper says that neural encoders have lost the word statistics that BM25 has, and gives them back by the context.

{check_table(checks)}"""
    return Page(f"{finding}.", text, {"ndcg": plot_means(rows)})


def check_claims(rows: list[Row]) -> list[Check]:
    """What we expect of each model, and what was measured."""
    checks = []
    for name, (architecture, batches) in {"not trained": MINILM, "trained": TRAINED}.items():
        lexical = (architecture, "lexical", batches)
        foreign = gains(rows, lexical, lexical, contexts=("foreign", "own"))
        pooled = gains(rows, (architecture, "frequency-pooled", batches), lexical)
        plain = gains(rows, (architecture, "mean", batches), lexical)
        checks += [
            Check(f"{name}, lexical above frequency-pooled", pooled),
            Check(f"{name}, lexical: own context above foreign", foreign),
            Check(f"{name}, lexical above the plain mean", plain),
        ]
    return checks


EXPERIMENT = Experiment(
    name="lexical",
    title="A lexical part beside the dense vector",
    claim="A sketch of the text's words, weighed by the context, gives back what BM25 has and neural encoders lost.",
    minutes=10,
    run=run,
    report=report,
)
