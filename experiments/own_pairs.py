"""
own-pairs: what training on pairs of one's own domain is worth, beside sentence-transformers' own trainer.

1. 250 queries are held out of the training pairs, or a quarter. They choose between start, middle and end of training.
   Settings were chosen on them too, never on the test queries.
2. Models are trained on 300, 1,000 and all other pairs.
3. The untrained encoder, the last and the chosen state are scored on test queries: alone and contextualized with the
   documents of the test set, with and without BM25.
"""

import copy
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from transformers import TrainerCallback

from cde_hf import (
    ContextualContrastiveTrainer,
    ContextualModelEmbedder,
    ContextualTrainingArguments,
    RetrievalSet,
    SentenceTransformerSurrogate,
    TfidfSurrogate,
    contextualize,
    evaluate,
    load_pairs,
    load_retrieval_set,
    model_path,
    prepare_batch_plan,
)
from cde_hf.data import NO_PROMPTS, hold_out, retrieval_set_from_pairs
from cde_hf.evaluation import Hybrid, compare_scores
from cde_hf.evaluation.systems import RememberingContextualEmbedder
from cde_hf.trainer.evaluation import make_embedder
from cde_hf.trainer.models import load_model
from cde_hf.trainer.sizes import NEW_LAYERS, has_many_false_negatives

from .runner.comparison import Check, check_table
from .runner.config import hash_of
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_json
from .runner.sets import sample_set
from .runner.table import Row, markdown_table, seed_gains, seed_means, select, show
from .runner.workspace import Workspace


BIENCODER, CONTEXTUAL, PEER = "biencoder", "contextual model", "sentence-transformers"
RANDOM, ONE_DOMAIN = "biencoder, random batches", "biencoder, batches of one domain"
OWN_SURROGATE = "biencoder, the encoder as surrogate"
WAYS = (BIENCODER, PEER, CONTEXTUAL)
GROUPINGS = {RANDOM: "random", ONE_DOMAIN: "domain"}
MINILM, GTE = "minilm", "gte-small"
SIZES, ALL = (300, 1000, 0), 0
# Whole packages are held out of the code.
TESTED_PACKAGES = ("django", "networkx", "pandas", "scikit_learn", "twisted")


@dataclass(frozen=True)
class Case:
    """
    Pairs to train on and the queries that test it.

    Args:
        pairs (`str`):
            Name of the training pairs.
        test (`str`, *optional*):
            Name of the test set. Defaults to the pairs of the tested packages.
        ways (`tuple[str, ...]`, *optional*, defaults to `()`):
            What is trained on all pairs alone, beside what is trained on every number of pairs.
        sizes (`tuple[int, ...]`, *optional*, defaults to `(300, 1000, 0)`):
            Numbers of pairs, 0 for all.
        encoder (`str`, *optional*, defaults to `"minilm"`):
            The encoder that is trained. Others than MiniLM are given by `--encoders`.
    """

    pairs: str
    test: str | None = None
    ways: tuple[str, ...] = ()
    sizes: tuple[int, ...] = SIZES
    encoder: str = MINILM


CASES = {
    "obliqa": Case("regulatory_obliqa_dev", "obliqa", (RANDOM, OWN_SURROGATE)),
    "nfcorpus": Case("nfcorpus_train", "nfcorpus", (RANDOM, OWN_SURROGATE)),
    "python_code": Case("python_code", None, (BIENCODER, RANDOM, ONE_DOMAIN, PEER), ()),
    f"obliqa, {GTE}": Case("regulatory_obliqa_dev", "obliqa", (BIENCODER, PEER), (), GTE),
}
NUM_HELD_OUT, NUM_QUERIES, NUM_DOCUMENTS, LENGTH = 250, 200, 2500, 128
LEARNING_RATE, TEMPERATURE, MAX_STEPS = 3e-5, 0.05, 75
START, LAST, CHOSEN = "untrained", "last", "chosen"
SYSTEMS = {
    "alone": ("model", "none"),
    "contextualized": ("model", "own"),
    "hybrid": ("model hybrid", "none"),
    "contextualized hybrid": ("model hybrid", "own"),
}
ADAPTED = {"alone": "o-", "contextualized": "o--"}  # systems of the plot, and their lines
Scores = dict[str, dict[str, float]]  # of each system, by query


@dataclass(frozen=True)
class Run:
    """
    A training.

    Args:
        case (`str`):
            Name of the test set.
        num_pairs (`int`):
            Pairs to train on, 0 for all.
        way (`str`):
            What is trained, and by whom.
        seed (`int`):
            Seed of the training.
        is_quick (`bool`, *optional*, defaults to `False`):
            Whether only to test that it runs.
    """

    case: str
    num_pairs: int
    way: str
    seed: int
    is_quick: bool = False

    def sizes(self, num_pairs: int) -> tuple[int, int]:
        """Pairs in a batch, and steps: at most three epochs."""
        if self.is_quick:
            return 8, 2
        batch_size = 32 if num_pairs < 1000 else 64
        return batch_size, min(MAX_STEPS, round(3 * num_pairs / batch_size))


class States(TrainerCallback):
    """Scores the model on held-out queries in the middle and at the end of a training, and keeps the best weights."""

    def __init__(self, model: torch.nn.Module, wrapped: SentenceTransformer, tested: RetrievalSet, start: float):
        self.model, self.wrapped, self.tested = model, wrapped, tested
        self.scores, self.best_step = {0: start}, 0
        self.best_weights: dict[str, torch.Tensor] | None = None
        self.seconds = 0.0

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step not in (state.max_steps // 2, state.max_steps):
            return
        started = time.perf_counter()
        score = fmean(score_systems(self.wrapped, self.tested, systems=("alone",))["alone"].values())
        if score > max(self.scores.values()):
            self.best_step, self.best_weights = state.global_step, copy.deepcopy(self.model.state_dict())
        self.scores[state.global_step] = score
        self.seconds += time.perf_counter() - started


def score_systems(
    model: SentenceTransformer, retrieval_set: RetrievalSet, systems: Sequence[str] = tuple(SYSTEMS)
) -> Scores:
    """NDCG@10 of each query, of a model in several systems."""
    was_training = model.training
    model.eval()
    inner = ContextualModelEmbedder(contextualize(model, None), "model")
    _compute_in_bfloat16(inner.model)
    embedder = RememberingContextualEmbedder(inner)
    rows = [SYSTEMS[name] for name in systems]
    members = [embedder, Hybrid(embedder, model.tokenizer)] if len(systems) > 1 else [embedder]
    contexts = tuple(dict.fromkeys(context for _, context in rows))
    scored = evaluate(members, [retrieval_set], contexts=contexts).scores[retrieval_set.name]
    model.train(was_training)
    return {name: scored[row]["ndcg@10"] for name, row in zip(systems, rows, strict=True)}


def _compute_in_bfloat16(model: SentenceTransformer) -> None:
    """Halves the time of a forward pass on CPUs that have such instructions. Vectors stay float32."""
    forward = model[0].forward

    def cast(*args: Any, **kwargs: Any) -> dict[str, Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = forward(*args, **kwargs)
        for name in ("token_embeddings", "sentence_embedding"):
            if name in features:
                features[name] = features[name].float()
        return features

    model[0].forward = cast


@cache
def load_case(workspace: Workspace, case: str, num_pairs: int) -> tuple[Dataset, RetrievalSet, RetrievalSet]:
    """Pairs to train on, held-out queries and test queries."""
    names, path = CASES[case], workspace.data_folder / "train" / f"{CASES[case].pairs}.jsonl.gz"
    if names.test is None:
        pairs = load_pairs(path, columns={"domain": "subdomain"})
        is_tested = [name in TESTED_PACKAGES for name in pairs["domain"][:]]
        test = retrieval_set_from_pairs(case, pairs.select([row for row, tested in enumerate(is_tested) if tested]))
        pairs = pairs.select([row for row, tested in enumerate(is_tested) if not tested])
    else:
        pairs = load_pairs(path)
        test = load_retrieval_set(workspace.data_folder / "eval" / names.test)
    pairs, held_out = hold_out(pairs, min(NUM_HELD_OUT, len(pairs.unique("query")) // 4))
    pairs = pairs.shuffle(seed=0)
    if num_pairs:
        pairs = pairs.select(range(num_pairs))
    return pairs.flatten_indices(), held_out, sample_set(test, NUM_QUERIES, NUM_DOCUMENTS, seed=0)


def encoder_path(workspace: Workspace, case: str) -> str:
    """Folder of the encoder that a case trains."""
    name = CASES[case].encoder
    return (
        model_path(MINILM) if name == MINILM else str(next(path for path in workspace.encoders if path.name == name))
    )


def load_plain(path: str) -> SentenceTransformer:
    model = SentenceTransformer(path, device="cpu")
    model.max_seq_length = LENGTH
    return model


def score_start(workspace: Workspace, case: str) -> tuple[float, Scores]:
    """The untrained encoder on held-out queries and on test queries."""
    path = workspace.runs / "own-pairs" / f"start-{case}.json"
    if not path.exists():
        _, held_out, test = load_case(workspace, case, 0)
        model = load_plain(encoder_path(workspace, case))
        start = fmean(score_systems(model, held_out, systems=("alone",))["alone"].values())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"start": start, "scores": score_systems(model, test)})
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["start"], content["scores"]


def train(workspace: Workspace, run: Run, folder: Path) -> dict[str, Any]:
    """Trains a model. Returns the scores of its states on held-out queries, and of two of them on test queries."""
    pairs, held_out, test = load_case(workspace, run.case, run.num_pairs)
    start, _ = score_start(workspace, run.case)
    batch_size, num_steps = run.sizes(len(pairs))
    encoder = encoder_path(workspace, run.case)
    settings = {
        "output_dir": str(folder),
        "seed": run.seed,
        "max_steps": num_steps,
        "per_device_train_batch_size": batch_size,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": math.ceil(num_steps / 10),
        "bf16": True,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
    }
    if run.way == PEER:
        wrapped = load_plain(encoder)
        network: torch.nn.Module = wrapped
        trainer: Any = SentenceTransformerTrainer(
            wrapped,
            SentenceTransformerTrainingArguments(**settings, batch_sampler=BatchSamplers.NO_DUPLICATES),
            pairs.select_columns(["query", "document"]),
            loss=CachedMultipleNegativesRankingLoss(wrapped, mini_batch_size=batch_size),
        )
    else:
        is_contextual = run.way == CONTEXTUAL
        network, tokenizer = load_model(encoder, "contextual" if is_contextual else "biencoder", seed=run.seed)
        surrogate = (
            SentenceTransformerSurrogate(encoder, max_length=LENGTH) if run.way == OWN_SURROGATE else TfidfSurrogate()
        )
        plan_name = f"plan-{hash_of([run.case, len(pairs), surrogate.description])}"
        plan = prepare_batch_plan(pairs, workspace.runs / "own-pairs" / plan_name, surrogate=surrogate)
        trainer = ContextualContrastiveTrainer(
            network,
            ContextualTrainingArguments(
                **settings,
                max_length=LENGTH,
                temperature=TEMPERATURE,
                disable_dropout=True,
                batch_grouping=GROUPINGS.get(run.way, "cluster"),
                filter_false_negatives=has_many_false_negatives(plan),
                learning_rate_mapping=NEW_LAYERS if is_contextual else None,
            ),
            pairs,
            plan,
            tokenizer,
            prompts=NO_PROMPTS,
        )
        if is_contextual:
            wrapped = make_embedder(network, tokenizer, prompts=NO_PROMPTS, max_length=LENGTH, batch_size=32).model
        else:
            wrapped = load_plain(encoder)
            wrapped[0].model = network  # type: ignore[assignment]
    states = States(network, wrapped, held_out, start)
    trainer.add_callback(states)
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started - states.seconds
    results = {LAST: score_systems(wrapped, test)}
    if states.best_step == num_steps:
        results[CHOSEN] = results[LAST]
    elif states.best_weights is not None:
        network.load_state_dict(states.best_weights)
        results[CHOSEN] = score_systems(wrapped, test)
    return {
        "held_out": states.scores,
        "best_step": states.best_step,
        "seconds": seconds,
        "num_pairs": len(pairs),
        "scores": results,
    }


def load_run(workspace: Workspace, run: Run) -> dict[str, Any]:
    """Results of a training, which is done once."""
    path = workspace.runs / "own-pairs" / f"{hash_of(asdict(run))}.json"
    if not path.exists():
        write_json(path, train(workspace, run, path.with_suffix("")))
    return json.loads(path.read_text(encoding="utf-8"))


def runs_of(setting: Setting) -> list[Run]:
    """All trainings, seed by seed, of the cases whose encoder is there."""
    encoders = {MINILM} | {path.name for path in setting.workspace.encoders}
    runs = []
    for seed, (name, case) in product(range(setting.num_seeds), CASES.items()):
        if case.encoder in encoders:
            sizes = tuple({ALL} & set(case.sizes)) if setting.is_quick else case.sizes
            pairs_and_ways = [*product(sizes, WAYS), *product((ALL,), case.ways)]
            runs += [Run(name, size, way, seed, is_quick=setting.is_quick) for size, way in pairs_and_ways]
    return runs


def run(setting: Setting) -> list[Row]:
    """Trains and scores everything. A row is a state of a run, scored in one system."""
    rows: list[Row] = []
    for each in runs_of(setting):
        result = load_run(setting.workspace, each)
        start, start_scores = score_start(setting.workspace, each.case)
        states = {START: start_scores, LAST: result["scores"][LAST]}
        states[CHOSEN] = result["scores"].get(CHOSEN, start_scores)
        for state, system in product(states, SYSTEMS):
            scores = states[state][system]
            comparison = compare_scores([start_scores[system]], [scores])
            rows.append(
                {
                    "case": each.case,
                    "pairs": result["num_pairs"],
                    "is_all": int(each.num_pairs == 0),
                    "way": each.way,
                    "seed": each.seed,
                    "state": state,
                    "system": system,
                    "score": 100 * fmean(scores.values()),
                    "p": comparison.p_value,
                    "held_out_gain": 100 * (max(result["held_out"].values()) - start),
                    "best_step": result["best_step"],
                    "minutes": result["seconds"] / 60,
                }
            )
    return rows


def report(rows: list[Row]) -> Page:
    """Scores by the number of pairs, what was expected, and a plot."""
    names = [name for name in CASES if select(rows, case=name)]
    checks = [check for name in names for check in _expectations(name, select(rows, case=name))]
    tables = "\n\n".join(f"## {name}\n\n{_table(select(rows, case=name))}" for name in names)
    text = f"""## Setting

all-MiniLM-L6-v2, or gte-small where it is named, is trained on pairs of a domain and tested on another set of it:
{_cases(names)}.
Training takes at most three epochs, or {MAX_STEPS} steps of 64 pairs (32 if there are fewer than 1,000), learning rate
{LEARNING_RATE:g}, temperature {TEMPERATURE}, no dropout, texts of {LENGTH} tokens, computed in bfloat16.
{NUM_HELD_OUT} queries are held out of the training pairs. They choose between the start, the middle and the end of
each training (*chosen*), and they chose the settings above. The test has {NUM_QUERIES} queries and {NUM_DOCUMENTS:,}
documents of a set, or all.

- *biencoder* and *contextual model* are trained by this package in contextual batches, with the filter if it would
  remove more than a fifth of the negatives of random batches. *sentence-transformers* is its own trainer with
  `CachedMultipleNegativesRankingLoss` and `BatchSamplers.NO_DUPLICATES`, with as many steps of as many pairs, and
  the encoder's dropout. Random batches and batches of one domain have the same filter. The surrogate, which clusters
  and filters, is TF-IDF unless it is said to be the encoder.
- *alone* is the model without any context; *contextualized* has the context of the test set's documents and a corpus
  part; *hybrid* adds BM25. ± is the standard deviation over seeds.
- *p* compares the chosen state with the untrained encoder, both alone, over the queries (the highest p of the seeds).

{tables}
## What was expected

{check_table(checks)}"""
    finding = "NDCG@10 of the model that held-out queries choose, alone. " + "; ".join(
        _summary(name, select(rows, case=name)) for name in names
    )
    return Page(f"{finding}.", text, {"pairs": _plot(rows)})


def _cases(names: Sequence[str]) -> str:
    """Which pairs train a model for which test."""
    cases = [CASES[name] for name in names]
    tests = {case.pairs: f"`{case.test}`" if case.test else "whole packages that are held out" for case in cases}
    return "; ".join(f"`{pairs}`, tested on {test}" for pairs, test in tests.items())


def _largest(rows: list[Row], way: str, **columns: Any) -> list[Row]:
    return select(rows, way=way, is_all=1, **columns)


def _summary(name: str, rows: list[Row]) -> str:
    start = seed_means(select(rows, state=START, system="alone"), "score")[0]
    found = _largest(rows, BIENCODER, state=CHOSEN)
    alone, adapted = (show(seed_means(select(found, system=each), "score").values()) for each in ADAPTED)
    return (
        f"{name}: {start:.1f} untrained, {alone} trained on all {found[0]['pairs']:,} pairs, {adapted} contextualized"
    )


def _expectations(name: str, rows: list[Row]) -> list[Check]:
    """What must hold: training beats contextualizing or does no harm, and is not behind the peer."""

    def of(state: str, way: str, system: str) -> dict[int, float]:
        return seed_means(_largest(rows, way, state=state, system=system), "score")

    trained = of(CHOSEN, BIENCODER, "alone")
    checks = [Check(f"{name}: trained above untrained", seed_gains(of(START, BIENCODER, "alone"), trained), -0.5)]
    if CASES[name].test == "obliqa":
        untrained = of(START, BIENCODER, "contextualized")
        checks.append(Check(f"{name}: trained above untrained and contextualized", seed_gains(untrained, trained)))
    if _largest(rows, PEER):
        peer = of(LAST, PEER, "alone")
        ours = {seed: score for seed, score in of(LAST, BIENCODER, "alone").items() if seed in peer}
        peer = {seed: peer[seed] for seed in ours}
        checks.append(Check(f"{name}: last state not behind sentence-transformers", seed_gains(peer, ours), -0.5))
    return checks


def _table(rows: list[Row]) -> str:
    start = select(rows, state=START)
    lines = [["untrained", "", "", "", *(_score(select(start, system=name)[:1]) for name in SYSTEMS), "", ""]]
    order = [BIENCODER, *GROUPINGS, OWN_SURROGATE, PEER, CONTEXTUAL]
    for pairs, way in sorted({(row["pairs"], row["way"]) for row in rows}, key=lambda at: (at[0], order.index(at[1]))):
        found = select(rows, pairs=pairs, way=way)
        chosen = select(found, state=CHOSEN)
        alone = select(chosen, system="alone")
        lines.append(
            [
                way,
                f"{pairs:,}",
                f"{fmean(row['minutes'] for row in alone):.1f}",
                " / ".join(str(row["best_step"]) for row in alone),
                *(_score(select(chosen, system=name)) for name in SYSTEMS),
                _score(select(found, state=LAST, system="alone")),
                f"{max(row['p'] for row in alone):.4f}",
            ]
        )
    return markdown_table(["model", "pairs", "minutes", "chosen step", *SYSTEMS, "last, alone", "p"], lines)


def _score(rows: list[Row]) -> str:
    return show(seed_means(rows, "score").values())


def _plot(rows: list[Row]) -> Figure:
    """NDCG@10 over the number of pairs, of the chosen states alone and contextualized."""
    names = [name for name, case in CASES.items() if case.sizes and select(rows, case=name)]
    figure, every_axes = plt.subplots(1, len(names), figsize=(4.5 * len(names), 3.4), squeeze=False)
    for axes, name in zip(every_axes[0], names, strict=True):
        case = select(rows, case=name)
        for (system, style), (colour, way) in product(ADAPTED.items(), enumerate(WAYS)):
            found = select(case, state=CHOSEN, system=system, way=way)
            points = {pairs: fmean(row["score"] for row in select(found, pairs=pairs)) for pairs in _values(found)}
            axes.plot(points.keys(), points.values(), style, color=f"C{colour}", label=f"{way}, {system}")
        for system, style in ADAPTED.items():
            start = select(case, state=START, system=system)[0]["score"]
            axes.axhline(start, color="grey", linestyle=style[-1] if style == "o-" else ":", linewidth=0.8)
        axes.set(title=name, xscale="log", xlabel="training pairs", ylabel="NDCG@10")
        axes.grid(alpha=0.3)
    every_axes[0][-1].legend(fontsize=6)
    figure.tight_layout()
    return figure


def _values(rows: list[Row]) -> list[int]:
    return sorted({int(row["pairs"]) for row in rows})


EXPERIMENT = Experiment(
    "own-pairs",
    "Training on your own pairs",
    "Training on your own pairs improves a good encoder where the labels are right, and does no harm elsewhere.",
    180,
    run,
    report,
)
