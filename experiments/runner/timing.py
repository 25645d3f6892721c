"""The time that runs will take, measured by one step of each kind of model and said before the start."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from tqdm.auto import tqdm

from .config import RunConfig
from .scoring import is_scored
from .sets import EvaluationConfig, load_sets
from .training import is_trained, load_model
from .workspace import Workspace


def announce(workspace: Workspace, runs: Sequence[tuple[RunConfig, EvaluationConfig, Sequence[str]]]) -> None:
    """Says how many runs are left and about how long it takes to train and to score them, each in some ways."""
    to_train, to_score = [], []
    for config, evaluation, ways in tqdm(runs, desc="Looking for runs", leave=False):
        folder = workspace.run_folder(config)
        if not is_trained(folder):
            to_train.append(config)
        for way in ways:
            if not is_trained(folder) or not is_scored(workspace, folder, evaluation, way):
                to_score.append((config, evaluation))
    shapes = {_shape(config): config for config, _ in to_score}
    times = {
        shape: time_step(workspace, config)
        for shape, config in tqdm(shapes.items(), desc="Timing a step of each kind", leave=False)
    }
    seconds = sum(config.steps * times[_shape(config)][0] for config in to_train)
    for config, evaluation in to_score:
        num_texts = sum(len(each.corpus) + len(each.queries) for each in load_sets(workspace, evaluation))
        seconds += len(evaluation.contexts) * num_texts * times[_shape(config)][1]
    sys.stdout.write(
        f"{len(runs)} runs: {len(to_train)} to train, {len(to_score)} scores to take, in about {seconds / 60:.0f} "
        "minutes.\n"
    )
    sys.stdout.flush()


def time_step(workspace: Workspace, config: RunConfig) -> tuple[float, float]:
    """Seconds of a training step, and seconds of a text in an evaluation, on random tokens of full length."""
    model = load_model(config, workspace.load_encoder(config))
    tokens = torch.randint(1000, 2000, ((2 + config.mined_negatives) * config.batch_size, config.max_length))
    inputs = {"input_ids": tokens}
    if config.architecture != "biencoder":
        num_documents = config.context_size if config.has_context else 1
        inputs["context_input_ids"] = tokens[:1].expand(num_documents, -1)

    def embed() -> torch.Tensor:
        output = model(**inputs)
        return output[0] if config.architecture == "biencoder" else output.embeddings

    model.train()
    step = _best_time(lambda: embed().sum().backward())
    model.eval()
    with torch.inference_mode():
        forward = _best_time(embed)
    return step, forward / len(tokens)


def _best_time(action: Callable[[], object]) -> float:
    times = []
    for _ in range(2):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def _shape(config: RunConfig) -> RunConfig:
    """The run without what its time does not depend on."""
    idle = {"filters": False, "filter_margin": 0.0, "filter_relative_margin": None}
    return replace(config, seed=0, batches="random", cluster_size=64, learning_rate=0.0, steps=1, **idle)
