"""Weights between those that a run began with and those that it ended with."""

import torch

from cde_hf import CDEModel

from .config import RunConfig
from .training import load_model, train_run
from .workspace import Workspace


def load_averaged_model(workspace: Workspace, config: RunConfig, share: float, **config_fields) -> CDEModel:
    """
    The model of a run, trained if need be, with its weights averaged with those that it began with.

    Training a good encoder on little data teaches it something and makes it forget something; a model between the two
    can be better than both.

    Args:
        workspace (`Workspace`):
            Where data and runs are.
        config (`RunConfig`):
            A run of a model with a context.
        share (`float`):
            Share of the trained weights, between 0, which gives those of the start, and 1.
        config_fields:
            Fields of the model's configuration that are to be others than in training.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"`share` must be between 0 and 1, got {share}.")
    model = CDEModel.from_pretrained(train_run(workspace, config), **config_fields)
    start = load_model(config, workspace.load_encoder(config)).state_dict()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(start[name].lerp(weight, share))
    return model
