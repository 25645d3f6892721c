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
from transformers import AutoTokenizer, PreTrainedModel, TrainerCallback

from cde_hf import Context, sample_documents
from cde_hf.trainer.step import Encoder, Texts

from .main_table import SETS
from .runner.config import RunConfig
from .runner.experiment import Setting
from .runner.files import write_json
from .runner.scoring import score_model
from .runner.sets import EvaluationConfig
from .runner.sweep import contexts_of, quick_evaluation, quick_run, score_rows, ways_of
from .runner.table import Row
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
CONTEXTS = ("own", "foreign", "none")
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


RUNS = {
    base_run(architecture="prefix"): "prefix, token space",
    base_run(architecture="soft_prompt"): "soft prompts",
    base_run(architecture="prefix", context_in_token_space=False): "prefix, random head",
    base_run(architecture="biencoder"): "biencoder",
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
    evaluation = quick_evaluation(EVALUATION) if setting.is_quick else EVALUATION
    for seed, (config, name) in product(range(setting.num_seeds), RUNS.items()):
        config = replace(quick_run(config) if setting.is_quick else config, seed=seed)
        curve = setting.workspace.run_folder(config).with_suffix(".curve.json")
        curve.parent.mkdir(parents=True, exist_ok=True)
        folder = train_run(setting.workspace, config, callbacks=[ContextCurve(setting.workspace, config, curve)])
        columns = {"model": name, "seed": seed}
        for point in json.loads(curve.read_text(encoding="utf-8")):
            place = {"context": point["context"], "set": point["domain"], "pooling": "accuracy"}
            rows.append({**columns, "step": point["step"], **place, "score": point["accuracy"]})
        for way in ways_of(config):
            if way == "whitened":
                continue
            pooling = "mean" if way in ("plain", "contextual") else "frequencies"
            scores = score_model(setting.workspace, folder, contexts_of(config, evaluation), way)
            for row in score_rows(scores, {}):
                place = {"context": row["context"], "set": row["set"], "pooling": pooling}
                rows.append({**columns, "step": config.steps, **place, "score": row["ndcg@10"]})
    return rows
