"""lexical: what a sketch of the words adds to MiniLM's vectors, without training, in own and foreign contexts."""

from dataclasses import replace

from cde_hf import CDEConfig

from .main_table import EVALUATION, base_run
from .runner.comparison import Check, check_table, context_table, gains, score_table
from .runner.experiment import Experiment, Page, Setting
from .runner.scoring import FREQUENCY_SCALE, LEXICAL_SIZE, score_bm25, score_model
from .runner.sweep import quick_evaluation, quick_run, score_rows
from .runner.table import Row
from .runner.training import save_start


PLAIN, POOLED, LEXICAL = (("minilm", pooling, "none") for pooling in ("mean", "frequency-pooled", "lexical"))


def run(setting: Setting) -> list[Row]:
    """BM25, and MiniLM in prefix attention without training, whose attention to the context adds nothing yet."""
    config, evaluation = base_run(layers=None, first_stage_layers=1), EVALUATION
    if setting.is_quick:
        config, evaluation = quick_run(config), quick_evaluation(evaluation)
    columns = {"run": "untrained", "seed": 0, "batches": "none"}
    rows = score_rows(
        score_bm25(setting.workspace, evaluation), {**columns, "architecture": "BM25", "pooling": "mean"}
    )
    folder = save_start(setting.workspace, config)
    for architecture, pooling, _ in (PLAIN, POOLED, LEXICAL):
        # Without a context all three are the plain mean.
        contexts = ("none",) if pooling == "mean" else ("own", "foreign")
        way = "contextual" if pooling == "mean" else f"contextual, {pooling}"
        scores = score_model(setting.workspace, folder, replace(evaluation, contexts=contexts), way)
        rows += score_rows(scores, {**columns, "architecture": architecture, "pooling": pooling})
    return rows


def report(rows: list[Row]) -> Page:
    """Tables, and what the lexical part is worth."""
    checks = [
        Check("lexical above frequency-pooled", gains(rows, POOLED, LEXICAL)),
        Check("lexical above the plain mean", gains(rows, PLAIN, LEXICAL)),
        Check("lexical, own context above foreign", gains(rows, LEXICAL, LEXICAL, contexts=("foreign", "own"))),
        Check("frequency-pooled, own context above foreign", gains(rows, POOLED, POOLED, contexts=("foreign", "own"))),
    ]
    finding = "Points of NDCG@10: " + ", ".join(f"{check.expectation} {check.gains[0]:+.1f}" for check in checks)
    text = f"""## Setting

T1's sets, cut as in T1, and all of MiniLM without training. *lexical*: context-frequency pooling
(`a = {FREQUENCY_SCALE}`) and, after the dense vector, a sketch of the text's words with {LEXICAL_SIZE} dimensions and
`lexical_weight={CDEConfig().lexical_weight}`. Words that are rare in the same {EVALUATION.context_size} context
documents get a higher weight. The only seed is that of the sampled queries and documents.

## NDCG@10

Models with a context use the set's own documents.

{score_table(rows)}
## The context

Mean over the sets. *foreign*: documents of the next set in the list. Without a context, both are the plain mean.

{context_table(rows)}
## What was expected

The paper says that neural encoders lack the word statistics that BM25 has, and that the context restores them.

{check_table(checks)}"""
    return Page(f"{finding}.", text)


EXPERIMENT = Experiment(
    name="lexical",
    title="A lexical part beside the dense vector",
    claim="A sketch of the text's words, weighted by the context, restores what BM25 has and neural encoders lack.",
    minutes=6,
    run=run,
    report=report,
)
