"""best: the best small model of these experiments, on every complete retrieval set, with texts of MiniLM's length."""

from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from cde_hf import Evaluation, save_checkpoint
from cde_hf.model_card import CardFacts, make_model_card
from cde_hf.retrieval import Row as EvaluationRow

from .divergence import LEFT_OUT_DOMAINS
from .runner.averaging import load_averaged_model
from .runner.config import NEW_LAYERS, RunConfig
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_text
from .runner.scoring import CONTEXTUAL_KINDS, LEXICAL_SIZE, evaluate_bm25, evaluate_model
from .runner.sets import EvaluationConfig
from .runner.sweep import WAYS, quick_evaluation, quick_run
from .runner.table import Row, markdown_table, select
from .runner.training import save_start, train_run
from .runner.workspace import Workspace


OURS, START = "contextual-minilm", "all-MiniLM-L6-v2"
FIELDS = {
    "pairs_per_domain": 2000,
    "first_stage_layers": 1,
    "context_source": "domain",
    "max_length": 64,
    "steps": 150,
    "learning_rate": 2e-5,
}
# Chosen on training domains, left out of a shorter training for it: docs/training.md.
SHARE = 0.5  # of the trained weights in the average with those of MiniLM
WAY = "contextual, lexical"  # as score_model calls the way that the model and its start are used
MAX_LENGTH = 256  # at test time: MiniLM's own
FORUMS = "redditforum-"  # the sets whose source, though not whose forums, is that of training domains


def best_run(workspace: Workspace) -> RunConfig:
    """All of MiniLM in prefix attention, trained on every domain whose documents are in no retrieval set."""
    files = sorted((workspace.data_folder / "train").glob("*.jsonl.gz"))
    domains = [path.name.removesuffix(".jsonl.gz") for path in files]
    return RunConfig(domains=tuple(domain for domain in domains if domain not in LEFT_OUT_DOMAINS), **FIELDS)


def build_model(workspace: Workspace, config: RunConfig) -> Path:
    """Trains the run, averages it with its start, and saves it ready for inference. Returns the folder."""
    trained = train_run(workspace, config)
    folder = workspace.runs / "best" / f"{trained.name}-{SHARE:g}"
    model = load_averaged_model(workspace, config, SHARE, **CONTEXTUAL_KINDS[WAY])
    save_checkpoint(model, AutoTokenizer.from_pretrained(trained), folder, max_length=MAX_LENGTH)
    return folder


def run(setting: Setting) -> list[Row]:
    """Trains the model, scores it and what it is compared with, one set after the other, and writes its card."""
    workspace, config = setting.workspace, best_run(setting.workspace)
    names = sorted(path.name for path in (workspace.data_folder / "eval").iterdir())
    settings = {"context_size": config.context_size, "max_queries": 100_000, "max_length": MAX_LENGTH}
    evaluations = [EvaluationConfig((name,), contexts=("own",), **settings) for name in names]
    if setting.is_quick:
        config, evaluations = quick_run(config), [quick_evaluation(each) for each in evaluations[:2]]
    folder, encoder = build_model(workspace, config), workspace.load_encoder(config)
    systems = {"BM25": partial(evaluate_bm25, workspace)}
    for way in WAYS:
        name = START if way == "plain" else f"{START}, {way}"
        systems[name] = partial(evaluate_model, workspace, encoder, kind=way)
    start = save_start(workspace, config)
    systems[f"{START}, lexical"] = partial(evaluate_model, workspace, start, kind=WAY)
    systems[OURS] = partial(evaluate_model, workspace, folder, kind="contextual")
    scores = {}
    for evaluation in tqdm(evaluations, desc="Sets", unit="set"):
        parts = {name: evaluate_system(config=evaluation) for name, evaluate_system in systems.items()}
        (retrieval_set,) = evaluation.sets
        # Whatever takes a context has the own one, so the rows do not name it.
        scores[retrieval_set] = {
            EvaluationRow(name): part.scores[retrieval_set][part.rows[0]] for name, part in parts.items()
        }
    result = Evaluation(scores, {}, evaluations[0].context_size, evaluations[0].seed)
    write_text(folder / "README.md", make_card(folder, config, result))
    return [
        {"run": folder.name, "system": row.system, "set": each, "ndcg@10": 100 * result.mean(row, retrieval_set=each)}
        for each in result.sets
        for row in result.rows
    ]


def make_card(folder: Path, config: RunConfig, evaluation: Evaluation) -> str:
    """The text of the model's card, with what it was trained on and all of its scores."""
    settings = {
        "domains": ", ".join(config.domains),
        "pairs of a domain": f"at most {config.pairs_per_domain}",
        "batches": f"{config.steps} of {config.batch_size} pairs, from clusters of TF-IDF vectors, filtered",
        "learning rate": f"{config.learning_rate}, of new layers {dict(config.learning_rate_mapping)[NEW_LAYERS]}",
        "tokens read of a text in training": config.max_length,
        "weights": f"{SHARE:g} of the trained ones, {1 - SHARE:g} of the encoder at the start",
    }
    facts = CardFacts(
        base_model=f"sentence-transformers/{START}",
        language=("en",),
        settings=settings,
        evaluation=evaluation,
        system=OURS,
    )
    return make_model_card(folder, f"cde-hf/{OURS}", facts)


def report(rows: list[Row]) -> Page:
    """A line for each set, the means, and the gain on each set."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    scores = {name: {row["set"]: row["ndcg@10"] for row in select(rows, system=name)} for name in systems}
    sets = sorted(scores[OURS])
    means = {name: fmean(scores[name].values()) for name in systems}
    lines = [[each, *(f"{scores[name][each]:.1f}" for name in systems)] for each in sets]
    kinds = {
        f"mean of {FORUMS}*": [each for each in sets if each.startswith(FORUMS)],
        "mean of the others": [each for each in sets if not each.startswith(FORUMS)],
        "mean": sets,
    }
    for title, kind in kinds.items():
        if kind:
            lines.append([f"**{title}**", *(f"**{fmean(scores[name][s] for s in kind):.1f}**" for name in systems)])
    gains = {name: [scores[OURS][each] - scores[name][each] for each in sets] for name in systems if name != OURS}
    finding = "Points of NDCG@10 of our model above " + ", ".join(
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

All six layers of MiniLM in prefix attention, with its first layer as first stage. Training uses at most
{trained.pairs_per_domain} pairs of each domain except {" and ".join(LEFT_OUT_DOMAINS)}, whose documents are in
retrieval sets: {trained.steps} steps of {trained.batch_size} pairs from clusters, texts of {trained.max_length}
tokens, {trained.context_size} context documents of the batch's domain, learning rate {trained.learning_rate}, the
plain mean. At test time the model has context-frequency pooling and a lexical part of {LEXICAL_SIZE} dimensions. Each
weight is averaged with the starting weight, which has weight {1 - SHARE:g}. One seed. *lexical* is the same without
training: MiniLM with frequency pooling and the lexical part.

The test covers all {len(sets)} complete sets, with texts of {MAX_LENGTH} tokens and {trained.context_size} context
documents of the set. Whitening and MiniLM's frequency pooling use the same documents, and BM25 reads texts of the same
length. The training data has other forums of Reddit with the same kind of pairs as `{FORUMS}*`, so these sets are
closer to the training data than the others.

## NDCG@10

{markdown_table(["set", *systems], lines)}"""
    return Page(f"{finding}, out of {len(sets)} sets.", text, {"gains": figure})


EXPERIMENT = Experiment(
    name="best",
    title="The best small model",
    claim="A small contextual model is at least 2.0 points above the encoder it started from.",
    minutes=120,
    run=run,
    report=report,
)
