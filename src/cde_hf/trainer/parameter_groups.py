"""The parameters of a model in the groups that an optimizer treats alike."""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from torch import nn


def group_parameters(
    model: nn.Module,
    *,
    decayed: Collection[str],
    weight_decay: float,
    learning_rate: float,
    new_layers_learning_rate: float,
) -> list[dict[str, Any]]:
    """
    Groups the trainable parameters of a contextual model by learning rate and weight decay.

    Args:
        model (`nn.Module`):
            The model. What is not part of a backbone is new.
        decayed (`Collection[str]`):
            Names of the parameters that have weight decay.
        weight_decay (`float`):
            Their weight decay.
        learning_rate (`float`):
            Learning rate of the backbones.
        new_layers_learning_rate (`float`):
            Learning rate of the rest.

    Returns:
        `list[dict]`: The groups, as optimizers take them.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[".backbone." not in name, name in decayed].append(parameter)
    return [
        {
            "params": parameters,
            "lr": new_layers_learning_rate if is_new else learning_rate,
            "weight_decay": weight_decay if is_decayed else 0.0,
        }
        for (is_new, is_decayed), parameters in groups.items()
    ]


__all__ = ["group_parameters"]
