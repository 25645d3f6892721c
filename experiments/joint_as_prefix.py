"""joint-as-prefix: models trained in joint attention run in prefix attention, without retraining."""

import json
import os
import shutil
from pathlib import Path

from tqdm.auto import tqdm

from . import main_table
from .runner.comparison import Check, check_table
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_json
from .runner.scoring import score_model
from .runner.sweep import quick_evaluation, score_rows, sweep
from .runner.table import Row, markdown_table, seed_gains, seed_means, select, show


FACTORS = ("run", "seed", "architecture", "pooling", "batches")
CONTEXTS = ("own", "foreign", "none")


def run(setting: Setting) -> list[Row]:
    """T1's contextual models, unchanged, and the joint models in prefix attention."""
    runs = {config: factors for config, factors in main_table.runs().items() if config.has_context}
    evaluation = main_table.EVALUATION
    rows = [
        {**row, "attention": row["architecture"]} for row in sweep(setting, runs, evaluation, ways=("contextual",))
    ]
    if setting.is_quick:
        evaluation = quick_evaluation(evaluation)
    joint = {row["run"]: {name: row[name] for name in FACTORS} for row in select(rows, architecture="joint")}
    for name, columns in tqdm(joint.items(), desc="Joint as prefix", unit="run"):
        folder = as_prefix(setting.workspace.runs / name, setting.workspace.runs / "joint_as_prefix" / name)
        scores = score_model(setting.workspace, folder, evaluation, "contextual")
        rows += [{**row, "attention": "prefix"} for row in score_rows(scores, columns)]
    return rows


def as_prefix(folder: Path, target: Path) -> Path:
    """A model with the same weights that attends in prefix attention. Returns its folder, which links to the files."""
    if not target.exists():
        unfinished = target.with_name(f"{target.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(folder, unfinished, copy_function=os.link)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        write_json(unfinished / "config.json", {**config, "context_attention": "prefix"})
        unfinished.rename(target)
    return target


def report(rows: list[Row]) -> Page:
    """Means by context of all three, and what the change loses."""
    lines, checks = [], []
    for batches in dict.fromkeys(row["batches"] for row in rows):
        own = select(rows, batches=batches)
        kinds = {
            "joint": select(own, architecture="joint", attention="joint"),
            "joint, run in prefix": select(own, architecture="joint", attention="prefix"),
            "prefix": select(own, architecture="prefix"),
        }
        means = {name: seed_means(select(found, context="own")) for name, found in kinds.items()}
        for name, found in kinds.items():
            cells = [show(seed_means(select(found, context=context)).values()) for context in CONTEXTS]
            lines.append([name, batches, *cells])
        title = f"{batches} batches: run in prefix at most 1.0 below"
        for other in ("joint", "prefix"):
            gains = seed_gains(means[other], means["joint, run in prefix"])
            checks.append(Check(f"{title} {other}", gains, -1.0))
    losses = [check for check in checks if check.expectation.endswith("joint")]
    finding = "Running a model trained in joint attention in prefix attention changes NDCG@10 by " + ", ".join(
        f"{check} ({check.expectation.partition(':')[0]})" for check in losses
    )
    text = f"""## Setting

T1's contextual models on T1's sets, without retraining. *joint, run in prefix* has the weights of *joint*, but its
context and soft prompts no longer attend to the text. *prefix* was trained in prefix attention, and reads the context
by separate attention (`separate_context`), which joint models do not have. ± is the standard deviation over seeds of
the mean over sets.

{markdown_table(["model", "batches", *CONTEXTS], lines)}
## What was expected

In the own context:

{check_table(checks)}"""
    return Page(f"{finding}.", text)


EXPERIMENT = Experiment(
    name="joint-as-prefix",
    title="Joint attention run as prefix attention",
    claim="A model trained in joint attention, like all released models, loses little in prefix attention.",
    minutes=20,
    run=run,
    report=report,
)
