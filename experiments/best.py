"""best: the best small model that these experiments give, on every retrieval set, whole and at MiniLM's own length."""

from statistics import fmean

import numpy as np
from divergence import LEFT_OUT_DOMAINS
from matplotlib.figure import Figure
from runner.averaging import train_averaged_run
from runner.config import RunConfig
from runner.experiment import Experiment, Page, Setting
from runner.scoring import score_bm25, score_model
from runner.sets import EvaluationConfig
from runner.sweep import WAYS, quick_evaluation, quick_run, score_rows
from runner.table import Row, markdown_table, select
from runner.workspace import Workspace
from tqdm.auto import tqdm


OURS, START = "ours", "all-MiniLM-L6-v2"
FIELDS = {
    "pairs_per_domain": 2000,
    "first_stage_layers": 1,
    "context_source": "domain",
    "max_length": 128,
    "steps": 300,
    "learning_rate": 2e-5,
}
SHARE = 0.5  # of the trained weights; the rest is that of MiniLM
MAX_LENGTH = 256  # at the test: that of MiniLM


def best_run(workspace: Workspace) -> RunConfig:
    """All of MiniLM in prefix attention, trained on every domain whose documents are not those of a retrieval set."""
    files = sorted((workspace.data_folder / "train").glob("*.jsonl.gz"))
    domains = [path.name.removesuffix(".jsonl.gz") for path in files]
    return RunConfig(domains=tuple(domain for domain in domains if domain not in LEFT_OUT_DOMAINS), **FIELDS)


def run(setting: Setting) -> list[Row]:
    """Trains the model, and scores it and what it is compared with, one set after the other."""
    workspace, config = setting.workspace, best_run(setting.workspace)
    names = sorted(path.name for path in (workspace.data_folder / "eval").iterdir())
    evaluations = [
        EvaluationConfig((name,), contexts=("own",), max_queries=100_000, max_length=MAX_LENGTH) for name in names
    ]
    if setting.is_quick:
        config, evaluations = quick_run(config), [quick_evaluation(each) for each in evaluations[:2]]
    folder, encoder = train_averaged_run(workspace, config, SHARE), workspace.load_encoder(config)
    rows = []
    for evaluation in tqdm(evaluations, desc="Sets", unit="set"):
        found = [("BM25", score_bm25(workspace, evaluation))]
        found += [(_name(START, way), score_model(workspace, encoder, evaluation, way)) for way in WAYS]
        kind = "contextual, frequency-pooled"
        found.append((OURS, score_model(workspace, folder, evaluation, kind)))
        for name, scores in found:
            rows += score_rows(scores, {"run": folder.name, "seed": config.seed, "system": name})
    return rows


def _name(encoder: str, way: str) -> str:
    return encoder if way == "plain" else f"{encoder}, {way}"


def report(rows: list[Row]) -> Page:
    """A line for each set, the means, and the gain on each set."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    scores = {name: {row["set"]: row["ndcg@10"] for row in select(rows, system=name)} for name in systems}
    sets = sorted(scores[OURS])
    means = {name: fmean(scores[name].values()) for name in systems}
    lines = [[each, *(f"{scores[name][each]:.1f}" for name in systems)] for each in sets]
    lines.append(["**mean**", *(f"**{means[name]:.1f}**" for name in systems)])
    gains = {name: [scores[OURS][each] - scores[name][each] for each in sets] for name in systems if name != OURS}
    finding = "Points of NDCG@10 that our model is above " + ", ".join(
        f"{name}: {means[OURS] - means[name]:+.1f} (better on {sum(gain > 0 for gain in gains[name])})"
        for name in gains
    )
    order = np.argsort(gains[START])
    figure = Figure(figsize=(7, 0.25 * len(sets) + 1))
    axes = figure.subplots()
    axes.barh([sets[place] for place in order], [gains[START][place] for place in order], color="lightsteelblue")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(f"NDCG@10 above {START}")
    trained = RunConfig(**FIELDS)
    text = f"""## Setting

All six layers of MiniLM in prefix attention, trained on {trained.pairs_per_domain} pairs of each domain but
{" and ".join(LEFT_OUT_DOMAINS)}, whose documents are those of retrieval sets: {trained.steps} steps of
{trained.batch_size} pairs from clusters, texts of {trained.max_length} tokens, {trained.context_size} context
documents of the batch's domain, the plain mean in training and context-frequency pooling in use. Then the weights are
averaged with those of the start, {SHARE:.0%} of them trained. One seed. Tested on all {len(sets)} sets, whole, on
texts of {MAX_LENGTH} tokens, with as many context documents of the set; the same ones for whitening and for the
frequency pooling of MiniLM. BM25 reads as much of a text.

## NDCG@10

{markdown_table(["set", *systems], lines)}"""
    return Page(f"{finding}, out of {len(sets)} sets.", text, {"gains": figure})


EXPERIMENT = Experiment(
    name="best",
    title="The best small model",
    claim="A small contextual model is at least 2.0 points above the encoder that it began with.",
    minutes=90,
    run=run,
    report=report,
)
