"""Averages of a run's first and last weights."""

import torch

from cde_hf import CDEModel

from .config import RunConfig
from .training import load_model, train_run
from .workspace import Workspace


def load_averaged_model(workspace: Workspace, config: RunConfig, share: float, **config_fields) -> CDEModel:
    """
    The model of a run, its weights averaged with the weights it started from. Trains the run first if needed.

    Training a good encoder on little data teaches it something and makes it forget something; a model between the two
    can be better than both.

    Args:
        workspace (`Workspace`):
            Where data and runs are.
        config (`RunConfig`):
            A run of a model with a context.
        share (`float`):
            Weight of the trained weights in the average, between 0 and 1.
        config_fields:
            Fields of the model's configuration that differ from training.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"`share` must be between 0 and 1, got {share}.")
    model = CDEModel.from_pretrained(train_run(workspace, config), **config_fields)
    start = load_model(config, workspace.load_encoder(config)).state_dict()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(start[name].lerp(weight, share))
    return model
