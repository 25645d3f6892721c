"""
context-path: can a model learn on real text to read the documents of its context? Longer runs than T1's, with curves.
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from transformers import AutoTokenizer, PreTrainedModel, TrainerCallback

from cde_hf import Context, sample_documents
from cde_hf.trainer.step import Encoder, Texts

from .main_table import SETS
from .runner.comparison import Check, check_table
from .runner.config import RunConfig
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_json
from .runner.scoring import score_model
from .runner.sets import WITH_BOILERPLATE, EvaluationConfig
from .runner.sweep import contexts_of, quick_evaluation, quick_run, score_rows, ways_of
from .runner.table import Row, markdown_table, seed_gains, seed_means, select, show
from .runner.training import train_run
from .runner.workspace import Workspace


TRAINING = (
    "acl_anthology",
    "ag_news",
    "debian_packages",
    "dictionary",
    "mdn_web_docs",
    "movies",
    "reuters_news",
    "review_qa",
    "shell_commands",
    "wiki_simple_pairs",
    "wikipedia_intro",
    "world_factbook",
)
HELD_OUT = ("dc_law", "medquad", "python_code", "recipes")
EVALUATION = EvaluationConfig(SETS, max_queries=200, max_documents=500, max_length=24)
NOISY = replace(EVALUATION, sets=tuple(f"{name}{WITH_BOILERPLATE}" for name in SETS), contexts=("own", "foreign"))
CONTEXTS = ("own", "foreign", "none")
MEAN, FREQUENCIES, ACCURACY = "mean", "frequencies", "accuracy"
_STEPS_BETWEEN_POINTS, _CANDIDATES = 300, 64


def base_run(**fields: Any) -> RunConfig:
    """A run of this experiment: MiniLM cut to two layers, 15 times as many steps as T1, contexts from clusters."""
    defaults = {
        "domains": TRAINING,
        "pairs_per_domain": 5000,
        "layers": 2,
        "first_stage_layers": 1,
        "steps": 1500,
        "warmup_steps": 50,
        "batch_size": 24,
        "max_length": 24,
        "context_source": "cluster",
    }
    return RunConfig(**{**defaults, **fields})


READER, CONTROL, UNREADABLE, PLAIN = "attention", "soft prompts", "attention, random head", "biencoder"
RUNS = {
    base_run(architecture="prefix"): READER,
    base_run(architecture="soft_prompt"): CONTROL,
    base_run(architecture="prefix", context_in_token_space=False): UNREADABLE,
    base_run(architecture="biencoder"): PLAIN,
}


class ContextCurve(TrainerCallback):
    """
    Measures during training how often the right document of 64 comes first on held-out domains, by context.

    Args:
        workspace (`Workspace`):
            Where the pairs are.
        config (`RunConfig`):
            The run.
        path (`Path`):
            File of the points.
    """

    def __init__(self, workspace: Workspace, config: RunConfig, path: Path):
        self.path, self.config = path, config
        self.texts = {name: workspace.load_pairs((name,), 1000)[0] for name in HELD_OUT}
        self.tokenizer = AutoTokenizer.from_pretrained(workspace.load_encoder(config))
        self.points: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []

    def on_step_end(self, args, state, control, model: PreTrainedModel, **kwargs) -> None:
        step = state.global_step
        is_new = all(point["step"] < step for point in self.points)
        if is_new and (step % _STEPS_BETWEEN_POINTS == 0 or step == state.max_steps):
            self.points += [{"step": step, **row} for row in self.measure(model)]
            write_json(self.path, self.points)

    @torch.no_grad()
    def measure(self, model: PreTrainedModel) -> list[Row]:
        """Accuracy in percent of each held-out domain in each context."""
        was_training, rows = model.training, []
        model.eval()
        encoder = Encoder(model, model)
        for index, name in enumerate(HELD_OUT):
            pairs = self.texts[name].select(range(512))
            others = {
                "own": self.texts[name]["document"][512:],
                "foreign": self.texts[HELD_OUT[index - 1]]["document"][512:],
            }
            for context in CONTEXTS:
                value = Context()
                if context != "none" and self.config.has_context:
                    documents = sample_documents(others[context], self.config.context_size)
                    value = model.encode_context(*self._tokens(documents)[:2])
                queries, documents = (self._embed(encoder, pairs[column], value) for column in ("query", "document"))
                scores = torch.bmm(queries, documents.transpose(1, 2))  # groups of candidates
                right = scores.argmax(dim=2) == torch.arange(_CANDIDATES)
                rows.append({"domain": name, "context": context, "accuracy": 100 * right.float().mean().item()})
        model.train(was_training)
        return rows

    def _tokens(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        length = self.config.max_length
        tokens = self.tokenizer(texts, truncation=True, max_length=length, padding=True, return_tensors="pt")
        return tokens["input_ids"], tokens["attention_mask"]

    def _embed(self, encoder: Encoder, texts: list[str], context: Context) -> torch.Tensor:
        parts = []
        for start in range(0, len(texts), _CANDIDATES):
            ids, mask = self._tokens(texts[start : start + _CANDIDATES])
            parts.append(encoder.embed_texts(Texts(ids, mask, mask.sum(dim=1).tolist()), context))
        return F.normalize(torch.stack(parts), dim=-1)


def run(setting: Setting) -> list[Row]:
    """Trains all models. Rows are points of the learning curves, and NDCG@10 on T1's sets at the end."""
    rows = []
    for seed, (config, name) in product(range(setting.num_seeds), RUNS.items()):
        config = replace(quick_run(config) if setting.is_quick else config, seed=seed)
        curve = setting.workspace.run_folder(config).with_suffix(".curve.json")
        curve.parent.mkdir(parents=True, exist_ok=True)
        folder = train_run(setting.workspace, config, callbacks=[ContextCurve(setting.workspace, config, curve)])
        columns = {"model": name, "seed": seed}
        for point in json.loads(curve.read_text(encoding="utf-8")):
            place = {"context": point["context"], "set": point["domain"], "pooling": ACCURACY}
            rows.append({**columns, "step": point["step"], **place, "score": point["accuracy"]})
        for evaluation, way in product((EVALUATION, NOISY), ways_of(config)):
            if way == "whitened":
                continue
            pooling = MEAN if way in ("plain", "contextual") else FREQUENCIES
            evaluation = contexts_of(config, quick_evaluation(evaluation) if setting.is_quick else evaluation)
            for row in score_rows(score_model(setting.workspace, folder, evaluation, way), {}):
                place = {"context": row["context"], "set": row["set"], "pooling": pooling}
                rows.append({**columns, "step": config.steps, **place, "score": row["ndcg@10"]})
    return rows


def report(rows: list[Row]) -> Page:
    """Learning curves, NDCG@10 at the end, and what was expected."""
    curves = select(rows, pooling=ACCURACY)
    scores = [row for row in rows if row["pooling"] != ACCURACY]
    noisy = [row for row in scores if str(row["set"]).endswith(WITH_BOILERPLATE)]
    clean = [row for row in scores if row not in noisy]
    last = max(row["step"] for row in curves)
    ends = select(curves, step=last)
    own, foreign = (select(clean, model=READER, context=context) for context in CONTEXTS[:2])
    checks = [
        Check("own context above foreign", _gains(select(foreign, pooling=MEAN), select(own, pooling=MEAN)), 0.5),
        Check(
            "... with frequency pooling",
            _gains(select(foreign, pooling=FREQUENCIES), select(own, pooling=FREQUENCIES)),
            0.5,
        ),
        Check("own context above soft prompts", _gains(select(clean, model=CONTROL), select(own, pooling=MEAN))),
        Check(
            "accuracy on held-out domains, own above foreign",
            _gains(*(select(ends, model=READER, context=context) for context in ("foreign", "own"))),
            1.0,
        ),
        Check(
            "random head: own context above foreign",
            _gains(
                *(select(clean, model=UNREADABLE, context=context, pooling=MEAN) for context in ("foreign", "own"))
            ),
        ),
    ]
    run_config = base_run()
    text = f"""## Setting

Models start from the first two layers of MiniLM (the first stage from one) and train for {run_config.steps} steps of
{run_config.batch_size} pairs from {len(TRAINING)} domains, in contextual batches, on texts of {run_config.max_length}
tokens. T1 had 100 steps. The context of a batch has {run_config.context_size} documents: of its clusters, or, in every
second batch by chance, of its domain. Nothing of the test sets or of the held-out domains is trained on.

- *attention*: prefix attention to context vectors in the token space, as new models have it. *random head*: the same
  with context vectors from a randomly initialised head. *soft prompts*: as many learned vectors in place of the
  documents. *biencoder*: none of these.
- *accuracy*: how often the right document of {_CANDIDATES} comes first on the held-out domains {", ".join(HELD_OUT)}.
- *foreign*: the documents of another domain or set. ± is the standard deviation over seeds.

## NDCG@10 at the end

Mean over T1's sets, cut to {EVALUATION.max_documents} documents and {EVALUATION.max_queries} queries. *with
boilerplate*: the same dozen random words stand in all texts of a set, queries included.

{_score_table(clean, noisy)}
## What was expected

{check_table(checks)}"""
    finding = (
        f"After {last} steps the own context improves NDCG@10 by {checks[0]} over a foreign one ({checks[1]} with "
        f"frequency pooling) and by {checks[2]} over soft prompts; accuracy on held-out domains by {checks[3]} over a "
        f"foreign one. With a random head the own context gains {checks[4]}."
    )
    return Page(finding, text, {"curves": _plot(curves)})


def _gains(low: list[Row], high: list[Row]) -> tuple[float, ...]:
    return seed_gains(seed_means(low, "score"), seed_means(high, "score"))


def _score_table(clean: list[Row], noisy: list[Row]) -> str:
    systems = dict.fromkeys((row["model"], row["pooling"]) for row in clean)
    lines = []
    for model, pooling in systems:
        cells = []
        for rows in (clean, noisy):
            for context in CONTEXTS:
                found = select(rows, model=model, pooling=pooling, context=context)
                cells.append(show(seed_means(found, "score").values()) if found else "")
        lines.append([model, pooling, *cells])
    header = ["model", "pooling", *CONTEXTS, *(f"{context}, with boilerplate" for context in CONTEXTS)]
    return markdown_table(header, lines)


def _plot(curves: list[Row]) -> Figure:
    """Accuracy with the own context minus accuracy with a foreign one over the steps, and accuracy of all models."""
    figure, (gains, accuracies) = plt.subplots(1, 2, figsize=(9, 3.2))
    steps = sorted({row["step"] for row in curves})
    for colour, model in enumerate(dict.fromkeys(row["model"] for row in curves)):
        for seed in sorted({row["seed"] for row in select(curves, model=model)}):
            found = {
                context: [
                    seed_means(select(curves, model=model, seed=seed, step=step, context=context), "score")[seed]
                    for step in steps
                ]
                for context in CONTEXTS[:2]
            }
            style = {"color": f"C{colour}", "label": model if seed == 0 else None}
            accuracies.plot(steps, found["own"], **style)
            if model in (READER, UNREADABLE):
                difference = [own - foreign for own, foreign in zip(found["own"], found["foreign"], strict=True)]
                gains.plot(steps, difference, **style)
    gains.axhline(0, color="grey", linewidth=0.8)
    gains.set(xlabel="steps", ylabel="own - foreign, accuracy in points")
    accuracies.set(xlabel="steps", ylabel="accuracy, percent")
    for axes in (gains, accuracies):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    return figure


EXPERIMENT = Experiment(
    "context-path",
    "Attention to context documents, in longer training",
    "A model learns on real text to read the documents of its context, and the own context is better than another.",
    110,
    run,
    report,
)
