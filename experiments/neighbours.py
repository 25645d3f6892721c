"""
P2 and Q1: how many of a query's nearest documents answer it too, and how many of these the filter finds.

The paper shows the neighbours of one banking question. Here the data has labels: two utterances of the same intent
answer each other. So all of them are counted.
"""

from collections.abc import Sequence
from itertools import islice, product

import numpy as np
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from cde_hf import (
    BatchPlan,
    ClusteredBatchSampler,
    FalseNegativeFilter,
    SentenceTransformerSurrogate,
    TfidfSurrogate,
    load_pairs,
    model_path,
    prepare_batch_plan,
)

from .batches import all_epochs
from .runner.config import hash_of
from .runner.experiment import Experiment, Page, Setting
from .runner.table import Row, markdown_table, select


RANKS = (1, 2, 5, 10, 20, 50)
MARGINS = (-0.2, -0.1, 0.0, 0.1)
BATCH_SIZE = 64
NUM_BATCHES = 100


def load_plans(setting: Setting) -> tuple[dict[str, BatchPlan], np.ndarray]:
    """Plans of the intents by surrogate, and the intent of each pair."""
    path = setting.workspace.data_folder / "train" / "intents.jsonl.gz"
    pairs = load_pairs(path, columns={"domain": "subdomain"})
    if setting.is_quick:
        pairs = pairs.shuffle(seed=0).select(range(min(1000, len(pairs))))
    intents = np.unique(pairs["domain"][:], return_inverse=True)[1]
    pairs = pairs.remove_columns("domain")
    surrogates = {"TF-IDF": TfidfSurrogate()}
    if not setting.is_quick:
        surrogates["MiniLM"] = SentenceTransformerSurrogate(model_path("minilm"), max_length=32)
    plans = {
        name: prepare_batch_plan(
            pairs,
            setting.workspace.runs / "plans" / hash_of(["intents", len(pairs), name]),
            surrogate=surrogate,
            cluster_size=BATCH_SIZE,
        )
        for name, surrogate in surrogates.items()
    }
    return plans, intents


def run(setting: Setting) -> list[Row]:
    """Shares of right answers among the nearest documents, and among the negatives of batches, before and after."""
    plans, intents = load_plans(setting)
    rows = []
    for surrogate, plan in tqdm(plans.items(), desc="Plans"):
        for rank, share in answer_shares(plan, intents).items():
            rows.append(_row(surrogate, "", "neighbours", rank, 0.0, share, 0.0))
        for (grouping, name), margin in product((("cluster", "k-means"), ("domain", "random")), MARGINS):
            values = filter_shares(plan, intents, grouping, margin)
            rows.append(_row(surrogate, name, "batches", 0, margin, *values))
    return rows


def answer_shares(plan: BatchPlan, intents: np.ndarray) -> dict[int, float]:
    """For each rank the share of other pairs' documents, up to it, that have the query's intent."""
    queries = np.random.default_rng(0).choice(len(plan), min(1000, len(plan)), replace=False)
    documents = np.asarray(plan.filter_documents, dtype=np.float32)
    scores = np.asarray(plan.filter_queries[np.sort(queries)], dtype=np.float32) @ documents.T
    scores[np.arange(len(queries)), np.sort(queries)] = -np.inf
    nearest = np.argsort(-scores, axis=1)[:, : max(RANKS)]
    is_answer = intents[nearest] == intents[np.sort(queries), None]
    return {rank: float(is_answer[:, :rank].mean()) for rank in RANKS}


def filter_shares(plan: BatchPlan, intents: np.ndarray, grouping: str, margin: float) -> tuple[float, ...]:
    """Share of right answers among a batch's negatives; share of them left out; and of the others left out."""
    false_negatives = FalseNegativeFilter(plan, margin)
    sampler = ClusteredBatchSampler(plan, BATCH_SIZE, grouping=grouping)
    counts = np.zeros(4)
    for rows in islice(all_epochs(sampler), NUM_BATCHES):
        rows = np.asarray(rows)
        is_negative = ~np.eye(len(rows), dtype=bool)
        is_answer = (intents[rows][:, None] == intents[rows])[is_negative]
        is_left_out = false_negatives(rows)[1][is_negative]
        parts = is_answer, ~is_answer, is_answer & is_left_out, ~is_answer & is_left_out
        counts += [part.sum() for part in parts]
    answers, others, found, lost = counts
    return answers / (answers + others), found / max(answers, 1), lost / others


def _row(surrogate: str, clusters: str, kind: str, rank: int, margin: float, *values: float) -> Row:
    answers, found, *lost = (float(value) for value in values)
    return {
        "surrogate": surrogate,
        "clusters": clusters,
        "kind": kind,
        "rank": rank,
        "margin": float(margin),
        "answers": answers,
        "found": found,
        "lost": lost[0] if lost else 0.0,
    }


def report(rows: list[Row]) -> Page:
    """Tables of neighbours and of the filter."""
    neighbours, batches = select(rows, kind="neighbours"), select(rows, kind="batches")
    surrogates = list(dict.fromkeys(row["surrogate"] for row in rows))
    figure = Figure(figsize=(5, 3.5))
    axes = figure.subplots()
    lines = []
    for name in surrogates:
        found = select(neighbours, surrogate=name)
        axes.plot([row["rank"] for row in found], [100 * row["answers"] for row in found], marker="o", label=name)
        lines.append([name, *(f"{row['answers']:.0%}" for row in found)])
    axes.set_xlabel("nearest documents")
    axes.set_ylabel("% with the query's intent")
    axes.set_ylim(0, 100)
    axes.legend()
    without_margin = select(batches, margin=0.0)
    best = select(without_margin, surrogate=surrogates[-1], clusters="k-means")[0]
    finding = (
        f"{select(neighbours, surrogate=surrogates[-1], rank=1)[0]['answers']:.0%} of the nearest documents by "
        f"{surrogates[-1]} answer the query too; in contextual batches {best['answers']:.0%} of the negatives do, and "
        f"the filter without a margin finds {best['found']:.0%} of these, for {best['lost']:.0%} of the others."
    )
    text = f"""## Setting

10,000 pairs of utterances of the same intent, 227 intents of banking and of an assistant. A document of the query's
intent is a right answer. Ranks are over 1,000 queries. Batches: {NUM_BATCHES} of {BATCH_SIZE} pairs, from clusters of
{BATCH_SIZE}.

## Right answers among the nearest documents of other pairs

{markdown_table(["surrogate", *(f"first {rank}" for rank in RANKS)], lines)}
## Right answers among the negatives of a batch, and the filter

{_filter_table(batches)}
*found*: share of the right answers that the filter removes. *lost*: share of the other negatives that it removes too.

## Against the paper

Neighbours are often right answers, so hard batches need a filter. How well it works depends on the surrogate and on
the margin: below zero it finds more right answers and loses more true negatives."""
    return Page(finding, text, {"neighbours": figure})


def _filter_table(rows: Sequence[Row]) -> str:
    lines = [
        [
            row["surrogate"],
            row["clusters"],
            f"{row['margin']:+.1f}",
            f"{row['answers']:.1%}",
            f"{row['found']:.0%}",
            f"{row['lost']:.1%}",
        ]
        for row in rows
    ]
    return markdown_table(["surrogate", "batches from", "margin", "right answers", "found", "lost"], lines)


EXPERIMENT = Experiment(
    name="P2",
    title="Right answers among the nearest neighbours",
    claim="The nearest neighbours of a query are often right answers, so hard batches need a filter.",
    minutes=5,
    run=run,
    report=report,
)
