"""Facts about the backbones: how to build one, and what it adds to its inputs."""

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel


# Encoders that rotate queries and keys by position. Position 0 rotates by nothing.
ROTARY_TYPES = ("nomic_bert", "modernbert")

# Encoders that add a learned vector per position to their inputs.
LEARNED_POSITION_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")


def build_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """Builds an encoder with random weights and without the pooling layer of BERT-like models."""
    model_class: Any = AutoModel._model_mapping[type(config)]
    has_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    return AutoModel.from_config(config, **({"add_pooling_layer": False} if has_pooler else {}))


def has_learned_positions(config: PreTrainedConfig) -> bool:
    """Whether an encoder adds a learned vector per position to its inputs."""
    return config.model_type in LEARNED_POSITION_TYPES


def has_local_layers(config: PreTrainedConfig) -> bool:
    """Whether an encoder has layers in which a token attends only to its neighbours (ModernBERT)."""
    return "sliding_attention" in (getattr(config, "layer_types", None) or ())


def first_position(backbone: PreTrainedModel) -> int:
    """Position id of a text's first token. RoBERTa starts after the id of its padding token."""
    return getattr(backbone.embeddings, "padding_idx", -1) + 1


def longest_text(backbone: PreTrainedModel) -> int:
    """Maximum number of tokens of a text."""
    return backbone.config.max_position_embeddings - first_position(backbone)


def move_padding_to_the_right(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """
    Rotates texts so that none starts with padding. Positions count from the first column.

    Args:
        input_ids (`torch.Tensor` of shape `(num_texts, sequence_length)`):
            Token ids.
        attention_mask (`torch.Tensor` of shape `(num_texts, sequence_length)`, *optional*):
            Zero at padding. `None` stands for ones.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The rotated token ids and attention mask.
    """
    if attention_mask is None:
        return input_ids, torch.ones_like(input_ids)
    length = input_ids.shape[1]
    first = attention_mask.int().argmax(dim=1, keepdim=True)  # the first of the ones
    columns = torch.arange(length, device=input_ids.device) + first
    columns = torch.where(columns < length, columns, columns - length)  # ONNX cannot export a modulo by a length
    return input_ids.gather(1, columns), attention_mask.gather(1, columns)


def added_to_inputs(backbone: PreTrainedModel) -> Tensor | float:
    """
    The vector that the embedding layer adds to a row of `inputs_embeds` at [`first_position`].

    The context and the soft prompt must enter the network without a token type or a learned position. The second
    stage therefore subtracts this vector first.
    """
    embeddings: Any = backbone.embeddings
    added: Tensor | float = 0.0
    if hasattr(embeddings, "token_type_embeddings"):
        added = added + embeddings.token_type_embeddings.weight[0]
    if has_learned_positions(backbone.config):
        added = added + embeddings.position_embeddings.weight[first_position(backbone)]
    return added


__all__ = [
    "LEARNED_POSITION_TYPES",
    "ROTARY_TYPES",
    "added_to_inputs",
    "build_backbone",
    "first_position",
    "has_learned_positions",
    "has_local_layers",
    "longest_text",
    "move_padding_to_the_right",
]
