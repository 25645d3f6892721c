"""What the two stages must know about a backbone of transformers: how to build it and what it adds to its inputs."""

import inspect

from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel


# Encoders whose positions are rotations of queries and keys: position 0 is no position at all.
ROTARY_TYPES = ("nomic_bert", "modernbert")

# Encoders that add a learned vector per position to their inputs.
LEARNED_POSITION_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")


def build_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """Builds an encoder with random weights, without the pooling layer that BERT-like models have."""
    model_class = AutoModel._model_mapping[type(config)]
    has_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    return AutoModel.from_config(config, **({"add_pooling_layer": False} if has_pooler else {}))


def has_learned_positions(config: PreTrainedConfig) -> bool:
    """Whether an encoder adds a vector per position to its inputs."""
    return config.model_type in LEARNED_POSITION_TYPES


def has_local_layers(config: PreTrainedConfig) -> bool:
    """Whether an encoder has layers in which a token sees only its neighbours (ModernBERT)."""
    return "sliding_attention" in (getattr(config, "layer_types", None) or ())


def first_position(backbone: PreTrainedModel) -> int:
    """Position id of a text's first token: RoBERTa keeps the ids up to that of its padding token free."""
    return getattr(backbone.embeddings, "padding_idx", -1) + 1


def longest_text(backbone: PreTrainedModel) -> int:
    """Number of tokens that an encoder can read of a text."""
    return backbone.config.max_position_embeddings - first_position(backbone)


def added_to_inputs(backbone: PreTrainedModel) -> Tensor | float:
    """
    The vector that the embedding layer adds to a row of `inputs_embeds` at [`first_position`].

    The context and the soft prompt are to enter the network bare, without token type and learned position, so this
    is taken off before.
    """
    embeddings: nn.Module = backbone.embeddings
    added = 0.0
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
]
