"""
Trains a run, unless it was trained before.

The folder of a run is named after the hash of its identity. It holds the model and, written last, `training.json`: a
folder without that file was interrupted, and training resumes from its last complete checkpoint.
"""

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, TrainerCallback, set_seed

from cde_hf import CDEModel, ContextualContrastiveTrainer, ContextualTrainingArguments
from cde_hf.data import NO_PROMPTS

from .config import NUM_SOFT_PROMPTS, RunConfig
from .files import write_json
from .workspace import Workspace


_SHORTEST_SAVING = 30  # steps between checkpoints


def load_model(config: RunConfig, encoder: str) -> PreTrainedModel:
    """The model at the start of a run; its new weights follow from the seed."""
    set_seed(config.seed)
    if config.architecture == "biencoder":
        return AutoModel.from_pretrained(encoder)
    fields: dict[str, Any] = {"context_attention": "prefix", "num_soft_prompts": NUM_SOFT_PROMPTS}
    if config.architecture == "soft_prompt":
        # The null embedding always replaces the one context document, so training never sees a context. The soft
        # prompt makes the block as long as that of the contextual models.
        fields["num_soft_prompts"] += config.context_size - 1
        fields.update(context_size=1, sequence_dropout_prob=1.0)
    else:
        fields.update(
            context_attention=config.architecture,
            context_size=config.context_size,
            context_in_token_space=config.context_in_token_space,
            pooling=config.pooling,
            frequency_scale=config.frequency_scale,
        )
    return CDEModel.from_biencoder(encoder, first_stage_layers=config.first_stage_layers, **fields)


def train_run(workspace: Workspace, config: RunConfig, callbacks: Sequence[TrainerCallback] = ()) -> Path:
    """Trains a run, or resumes it, unless it is trained already. Returns its folder, a sentence-transformers model."""
    folder = workspace.run_folder(config)
    if is_trained(folder):
        return folder
    encoder = workspace.load_encoder(config)
    trainer = ContextualContrastiveTrainer(
        load_model(config, encoder),
        _arguments(config, folder),
        workspace.load_training_pairs(config)[0],
        workspace.load_plan(config),
        AutoTokenizer.from_pretrained(encoder),
        prompts=NO_PROMPTS,
        callbacks=list(callbacks),
    )
    start = time.perf_counter()
    trainer.train("auto")
    if trainer.was_terminated:
        raise KeyboardInterrupt("Training was terminated. Run the same command again to resume it.")
    trainer.save_model()
    names = ("loss", "accuracy", "hardness", "filtered_share")
    lines = [line for line in trainer.state.log_history if "loss" in line]
    means = {name: sum(line[name] for line in lines) / len(lines) for name in names}
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    write_json(folder / "identity.json", workspace.identify(config))
    write_json(folder / "training.json", {**means, "seconds": time.perf_counter() - start})
    return folder


def is_trained(folder: Path) -> bool:
    """Whether the run in a folder came to its end."""
    return (folder / "training.json").exists()


def read_training(folder: Path) -> dict[str, float]:
    """Means over a run's steps: loss, in-batch accuracy, hardness and filtered share of its batches; and its time."""
    return json.loads((folder / "training.json").read_text(encoding="utf-8"))


def _arguments(config: RunConfig, folder: Path) -> ContextualTrainingArguments:
    return ContextualTrainingArguments(
        output_dir=str(folder),
        seed=config.seed,
        max_steps=config.steps,
        per_device_train_batch_size=config.batch_size,
        max_length=config.max_length,
        context_source=config.context_source,
        context_max_length=config.context_max_length,
        disable_dropout=True,
        learning_rate=config.learning_rate,
        learning_rate_mapping=None if config.architecture == "biencoder" else dict(config.learning_rate_mapping),
        warmup_steps=config.warmup_steps,
        batch_grouping=config.batches,
        cluster_order=config.cluster_order,
        filter_false_negatives=config.filters,
        filter_margin=config.filter_margin,
        filter_relative_margin=config.filter_relative_margin,
        logging_steps=max(1, config.steps // 20),
        save_steps=max(_SHORTEST_SAVING, config.steps // 10),
        save_total_limit=1,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
