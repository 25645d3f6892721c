"""Builds an untrained model from an encoder. Checkpoints do not contain this file."""

import json
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.utils import logging
from transformers.utils.hub import cached_file

from .configuration_cde import CDEConfig
from .modeling_cde import CDEModel


logger = logging.get_logger(__name__)

Model = TypeVar("Model", bound=CDEModel)


def build_from_encoder(
    model_class: type[Model], name_or_path: str | Path, first_stage_layers: int | None, config_fields: dict[str, Any]
) -> Model:
    """Builds a model of a class. See [`CDEModel.from_biencoder`]."""
    if config_fields.get("has_first_stage") is False:
        raise ValueError("A model to be trained needs its first stage. Remove `has_first_stage=False`.")
    _check_field_names(config_fields)
    folder, subfolder = find_encoder_folder(name_or_path)
    encoder_config = AutoConfig.from_pretrained(folder, subfolder=subfolder)
    first_stage_config = encoder_config.to_dict()
    if first_stage_layers is not None:
        if not 1 <= first_stage_layers <= encoder_config.num_hidden_layers:
            raise ValueError(
                f"`first_stage_layers` must be between 1 and the encoder's {encoder_config.num_hidden_layers} "
                f"layers, got {first_stage_layers}."
            )
        first_stage_config["num_hidden_layers"] = first_stage_layers
        if "layer_types" in first_stage_config:
            first_stage_config["layer_types"] = first_stage_config["layer_types"][:first_stage_layers]
    config = model_class.config_class(
        first_stage_config=first_stage_config,
        second_stage_config=encoder_config.to_dict(),
        **{"output_residual": True, **config_fields},
    )
    encoder = AutoModel.from_pretrained(folder, subfolder=subfolder, dtype=torch.float32)
    model = model_class(config)
    weights = encoder.state_dict()
    for stage in (model.first_stage_model, model.second_stage_model):
        if stage is not None:
            stage.backbone.load_state_dict({name: weights[name] for name in stage.backbone.state_dict()})
    if config.output_residual:
        nn.init.zeros_(model.second_stage_model.output_projection[-1].get_parameter("weight"))
    return model.eval()


def find_encoder_folder(name_or_path: str | Path) -> tuple[str, str]:
    """
    Finds the encoder inside a sentence-transformers model. A plain encoder is returned unchanged.

    Args:
        name_or_path (`str` or `Path`):
            A folder or a name on the Hub.

    Returns:
        `tuple[str, str]`: The model and its subfolder, for `from_pretrained`.
    """
    name = str(name_or_path)
    modules_file = cached_file(name, "modules.json", _raise_exceptions_for_missing_entries=False)
    if modules_file is None:
        return name, ""
    modules = json.loads(Path(modules_file).read_text(encoding="utf-8"))
    if not modules[0]["type"].endswith("Transformer"):
        raise ValueError(
            f"`{name}` starts with a module of type `{modules[0]['type']}`, but only a Transformer has weights for "
            "both stages. Use a sentence-transformers model with an encoder."
        )
    for module in modules[1:]:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            _warn_unless_mean(name, module["path"])
        elif kind != "Normalize":
            logger.warning_once(f"The module {kind} of `{name}` has no counterpart in a CDE model and is dropped.")
    return name, modules[0]["path"]


def _check_field_names(config_fields: dict[str, Any]) -> None:
    known = [*(field.name for field in fields(CDEConfig)), *CDEConfig.attribute_map, "first_stage_layers"]
    for name in config_fields:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f"Did you mean `{nearest[0]}`?" if nearest else "See the documentation of `CDEConfig`."
            raise ValueError(f"`CDEConfig` has no field `{name}`. {hint}")


def _warn_unless_mean(name: str, subfolder: str) -> None:
    file = cast(str, cached_file(name, "config.json", subfolder=subfolder))  # a missing file raises an error
    config = json.loads(Path(file).read_text(encoding="utf-8"))
    is_mean = config.get("pooling_mode", "mean") == "mean" and config.get("pooling_mode_mean_tokens", True)
    if not is_mean:
        logger.warning_once(
            f"`{name}` does not use mean pooling, but a CDE model does, so it needs more training. Prefer an encoder "
            "with mean pooling."
        )


__all__ = ["build_from_encoder", "find_encoder_folder"]
