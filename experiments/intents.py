"""intents: classification and clustering of utterances by their intent, with own, foreign and no context."""

from dataclasses import replace

from main_table import EVALUATION, short_run, short_setting
from runner.comparison import Check, check_table, model_name, own_context
from runner.experiment import Experiment, Page, Setting
from runner.labelled import LabelledSet, read_labelled_sets, score_labelled
from runner.sweep import quick_run
from runner.table import Row, markdown_table, pivot, seed_gains, seed_means, select, show
from runner.training import train_run
from tqdm.auto import tqdm


DOMAIN = "intents"
MAX_TEXTS = 20  # of a label
TASKS = {"classification": "Accuracy", "clustering": "V-measure"}
CONTEXTS = ("own", "foreign", "none")


def run(setting: Setting) -> list[Row]:
    """MiniLM, T1's biencoder and T1's model in prefix attention, from contextual batches."""
    sets = read_labelled_sets(setting.workspace.data_folder / "train" / f"{DOMAIN}.jsonl.gz", max_texts=MAX_TEXTS)
    if setting.is_quick:
        sets = [LabelledSet(each.name, each.texts[:100], each.labels[:100]) for each in sets]
    start = short_run(architecture="biencoder")
    runs = {
        replace(start, architecture=architecture): {
            "architecture": architecture,
            "pooling": "mean",
            "batches": "contextual",
        }
        for architecture in ("biencoder", "prefix")
    }
    if setting.is_quick:
        start, runs = quick_run(start), {quick_run(config): factors for config, factors in runs.items()}
    encoders = {"start": start, start.backbone: replace(start, layers=None)}
    columns = {"run": "untrained", "seed": 0, "pooling": "mean", "batches": "none"}
    systems = [
        (setting.workspace.load_encoder(config), "plain", {**columns, "architecture": name})
        for name, config in encoders.items()
    ]
    for seed in range(setting.num_seeds):
        for config, factors in tqdm(runs.items(), desc=f"Runs of seed {seed}", unit="run"):
            folder = train_run(setting.workspace, replace(config, seed=seed))
            kind = "contextual" if config.has_context else "plain"
            systems.append((folder, kind, {"run": folder.name, "seed": seed, **factors}))
    ways = [way for system in systems for way in _ways(*system)]
    rows = []
    for folder, kind, contexts, columns in tqdm(ways, desc="Models", unit="model"):
        scores = score_labelled(
            setting.workspace,
            folder,
            kind,
            sets,
            contexts=contexts,
            context_size=4 if setting.is_quick else EVALUATION.context_size,
            max_length=EVALUATION.max_length,
            num_draws=2 if setting.is_quick else 10,
        )
        rows += [
            {**columns, "context": context, "set": name, "task": task, "score": score}
            for context, by_set in scores.items()
            for name, tasks in by_set.items()
            for task, score in tasks.items()
        ]
    return rows


def _ways(folder: str, kind: str, columns: Row) -> list[tuple[str, str, tuple[str, ...], Row]]:
    """The ways to use a model: as it is, and with context-frequency pooling."""
    pooled = {**columns, "pooling": "frequency-pooled"}
    if kind == "contextual":
        return [(folder, kind, CONTEXTS, columns), (folder, f"{kind}, frequency-pooled", CONTEXTS, pooled)]
    return [(folder, "plain", ("none",), columns), (folder, "frequency-pooled", ("own", "foreign"), pooled)]


def report(rows: list[Row]) -> Page:
    """For each task a table by context and one by set, and what the own context is worth."""
    parts, checks = [], []
    for task, measure in TASKS.items():
        found = select(rows, task=task)
        lines = []
        for name in dict.fromkeys(model_name(row) for row in found):
            means = {
                context: seed_means(
                    (row for row in select(found, context=context) if model_name(row) == name), "score"
                )
                for context in CONTEXTS
            }
            lines.append([name, *(show(means[each].values()) if means[each] else "" for each in CONTEXTS)])
            for other in ("foreign", "none"):
                if means["own"] and means[other]:
                    gains = seed_gains(means[other], means["own"])
                    checks.append(Check(f"{task}, {name}: own above {other}", gains))
        header, by_set = pivot(own_context(found), model_name, "set", "score")
        parts.append(
            f"## {measure} of {task}\n\n{markdown_table(['model', *CONTEXTS], lines)}\n"
            f"By set, with the own context of what has one:\n\n{markdown_table(['model', *header], by_set)}"
        )
    shown = [check for check in checks if "prefix, frequency-pooled" in check.expectation]
    finding = "Points that the own context is worth in prefix attention with frequency pooling: " + ", ".join(
        f"{check} over {check.expectation.rpartition(' ')[2]} ({check.expectation.partition(',')[0]})"
        for check in shown
    )
    text = f"""## Setting

Utterances and their intents, {" and ".join(dict.fromkeys(row["set"] for row in rows))}, none of which T1's models,
here {short_setting()}, were trained on: at most {MAX_TEXTS} of each intent, in two halves. As in mteb: a
logistic regression on eight utterances of each intent in the first half, or all that there are, tested on the second;
k-means of the second half with as many clusters as intents; ten draws of each. Context documents are
{EVALUATION.context_size} utterances of the first half, *foreign* ones those of the other set. A mean of both sets, ±
the standard deviation over seeds of the training. *start* is MiniLM cut to three layers, which T1's models begin with.

{chr(10).join(parts)}
## What was expected

The paper's model gains on both kinds of tasks, without a count of what the context is worth there.

{check_table(checks)}"""
    return Page(f"{finding}.", text)


EXPERIMENT = Experiment(
    name="intents",
    title="Classification and clustering of intents",
    claim="The own context helps classification and clustering too.",
    minutes=20,
    run=run,
    report=report,
)
