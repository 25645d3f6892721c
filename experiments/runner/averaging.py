"""Weights between those that a run began with and those that it ended with."""

import os
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from .config import RunConfig
from .files import derive_folder
from .training import load_model, train_run
from .workspace import Workspace


def train_averaged_run(workspace: Workspace, config: RunConfig, share: float) -> Path:
    """
    Trains a run and averages its weights with those that it began with.

    Training a good encoder on little data teaches it something and makes it forget more; between the two lies a model
    that is better than both.

    Args:
        workspace (`Workspace`):
            Where data and runs are.
        config (`RunConfig`):
            The run.
        share (`float`):
            Share of the trained weights: 1 gives these, 0 those of the start.

    Returns:
        `Path`: The folder of the averaged model, beside the runs.
    """
    folder = train_run(workspace, config)

    def change(copy: Path) -> None:
        start = load_model(config, workspace.load_encoder(config)).state_dict()
        trained = load_file(folder / "model.safetensors")
        with safe_open(folder / "model.safetensors", "pt") as file:
            metadata = file.metadata()
        averaged = {name: start[name].lerp(value, share) for name, value in trained.items()}
        save_file(averaged, copy / "averaged.safetensors", metadata)
        os.replace(copy / "averaged.safetensors", copy / "model.safetensors")

    return derive_folder(folder, workspace.runs / "averaged" / f"{folder.name}-{share:g}", change)
