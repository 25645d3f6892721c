"""
Attention of the second stage: how text tokens attend to a precomputed context block.

In prefix attention the context block (context vectors and soft prompt) is computed separately:

1. The block goes through the backbone alone, and each layer's keys and values are recorded.
2. A text goes through the backbone, and each layer attends to its own keys and values and, in a softmax of its own, to
   the recorded ones. Both outputs are added. The queries of a whole batch attend to the block as one long text, so its
   keys are not copied for every text.

Both happen in the attention function. transformers looks it up by name, and its encoders pass unknown keyword
arguments on to it, so no backbone needs to be rewritten. The attention modules look up the function registered here,
which calls the implementation that the backbone's configuration names.
"""

import copy
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, sliding_window_bidirectional_mask_function
from transformers.modeling_flash_attention_utils import _flash_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .backbones import has_local_layers


# Names are global in a process and each checkpoint has its own copy of this code, so each copy needs its own name.
_NAME = f"cde_{hashlib.blake2b(__name__.encode(), digest_size=4).hexdigest()}"

_SUPPORTED = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


class RecordedBlock:
    """
    Keys and values of each layer, filled in while a context block goes through a backbone.

    A class because FSDP passes copies of plain dictionaries to the layers.
    """

    def __init__(self) -> None:
        self.keys_values: dict[int, tuple[Tensor, Tensor]] = {}


def context_attention_forward(
    module: Any,  # PyTorch types the attributes of an `nn.Module` as tensors or modules
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    recorded: RecordedBlock | None = None,
    context_keys_values: tuple[tuple[Tensor, Tensor], ...] | None = None,
    position_ids: Tensor | None = None,  # not passed on: flash-attention reads repeated zeros as packed texts
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """
    Attention function for transformers that records a context block, or lets texts attend to a recorded one.

    Args:
        module (`nn.Module`):
            The attention module. Its `layer_idx` selects its part of the block, its `backbone_config` the attention
            implementation.
        query, key, value (`torch.Tensor` of shape `(batch_size, num_heads, sequence_length, head_dim)`):
            The projected inputs, after rotation if the backbone is rotary.
        attention_mask (`torch.Tensor`, *optional*):
            Mask over the text, in the form that the implementation expects.
        recorded (`RecordedBlock`, *optional*):
            Filled with the keys and values of each layer. Recomputation under gradient checkpointing does not change
            it.
        context_keys_values (`tuple`, *optional*):
            Keys and values of each layer, of shape `(1, num_heads, num_block_tokens, head_dim)`.
    """
    implementation: str = module.backbone_config._attn_implementation
    attend: Callable[..., tuple[Tensor, Tensor | None]] = partial(_attend, implementation, module, **kwargs)
    if recorded is not None and module.layer_idx not in recorded.keys_values:
        recorded.keys_values[module.layer_idx] = (key, value)
    output, probabilities = attend(query, key, value, attention_mask)
    if context_keys_values is not None:
        context_key, context_value = context_keys_values[module.layer_idx]
        # A block may come from another device, precision or autocast state than the texts.
        context_key, context_value = context_key.to(key), context_value.to(value)
        output = output + attend(_as_one_text(query), context_key, context_value, None)[0].view_as(output)
    return output, probabilities


def use_context_attention(backbone: PreTrainedModel) -> None:
    """
    Makes the attention modules of a new backbone call [`context_attention_forward`].

    The backbone's own configuration keeps the name of the implementation that does the work, so transformers'
    `set_attn_implementation` changes it at any time.
    """
    config = copy.copy(backbone.config)
    config._attn_implementation_internal = _NAME
    layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    module: Any
    for index, layer in enumerate(layers):
        for module in layer.modules():
            # Every attention module of transformers has this attribute; NomicBERT's and DistilBERT's have no index.
            if hasattr(module, "is_causal"):
                module.layer_idx = index
                module.backbone_config = backbone.config
                module.config = config


def check_attention(config: PreTrainedConfig, implementation: str | None) -> None:
    """
    Refuses an attention implementation that cannot show the context to every token of the second stage.

    Args:
        config (`PreTrainedConfig`):
            Configuration of the second stage's backbone.
        implementation (`str`, *optional*):
            Name of the implementation. `None` stands for the default, which is supported.
    """
    if implementation is not None and implementation not in _SUPPORTED:
        raise ValueError(
            f"The second stage supports the attention implementations {', '.join(_SUPPORTED)}, got "
            f"`{implementation}`. Choose one for it: `attn_implementation={{'second_stage_config': 'sdpa'}}`."
        )
    if implementation is not None and implementation.startswith("flash") and has_local_layers(config):
        raise ValueError(
            f"`{implementation}` cannot show the context to the local layers of `{config.model_type}`. Use `sdpa` or "
            "`flex_attention` for the second stage: `attn_implementation={'second_stage_config': 'sdpa'}`."
        )


def joint_masks(
    backbone: PreTrainedModel, inputs_embeds: Tensor, attention_mask: Tensor, num_block_tokens: int
) -> Tensor | dict[str, Any]:
    """
    Mask for context block and text in one run, in the form that the backbone expects.

    Local layers apply their window between text tokens only, because the context is a set without positions.
    """

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query < num_block_tokens) | (key < num_block_tokens) | is_near(batch, head, query, key)

    if not has_local_layers(backbone.config):
        return attention_mask
    is_near = sliding_window_bidirectional_mask_function(backbone.config.sliding_window)
    arguments = (backbone.config, inputs_embeds, attention_mask)
    return {
        "full_attention": create_bidirectional_mask(*arguments),
        "sliding_attention": create_bidirectional_mask(*arguments, and_mask_function=sees),
    }


def block_masks(backbone: PreTrainedModel) -> dict[str, None] | None:
    """Mask for a run over the context block alone: full attention in every layer."""
    if not has_local_layers(backbone.config):
        return None
    return {"full_attention": None, "sliding_attention": None}


def _attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    if implementation == "eager":
        return _eager_attention(module, query, key, value, attention_mask, **kwargs)
    if implementation.startswith("flash"):
        return _flash_attention(module, query, key, value, attention_mask, implementation=implementation, **kwargs)
    return ALL_ATTENTION_FUNCTIONS[implementation](module, query, key, value, attention_mask, **kwargs)


def _eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(2, 3) * scaling  # (batch_size, num_heads, query_length, key_length)
    if attention_mask is not None:
        scores = scores + attention_mask
    probabilities = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    output = F.dropout(probabilities, dropout, training=module.training) @ value
    return output.transpose(1, 2).contiguous(), probabilities


def _flash_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    implementation: str,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    # Under autocast a backbone may rotate queries and keys in float32, which the kernel does not accept.
    query, key = query.to(value.dtype), key.to(value.dtype)
    bounds: dict[str, Any] = {}
    if attention_mask is not None:
        # A text's padding is a text of its own: to unpad as transformers does, the host would wait in every layer.
        sizes = torch.stack([(attention_mask != 0).sum(dim=1), (attention_mask == 0).sum(dim=1)], dim=1).flatten()
        ends, length = F.pad(sizes.cumsum(0), (1, 0)).int(), key.shape[2]
        bounds = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": length, "max_length_k": length}
    # transformers' `flash_attention_forward` would look up the kernel by the name in `module.config`, which is ours.
    output = _flash_attention_forward(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        None,
        query_length=query.shape[2],
        is_causal=False,
        dropout=dropout,
        softmax_scale=scaling,
        attn_implementation=implementation,
        **bounds,
    )
    return output, None


def _as_one_text(tensor: Tensor) -> Tensor:
    """From `(batch_size, num_heads, sequence_length, ...)` to `(1, num_heads, batch_size * sequence_length, ...)`."""
    return tensor if tensor.shape[0] == 1 else tensor.transpose(0, 1).flatten(1, 2).unsqueeze(0)


AttentionInterface.register(_NAME, context_attention_forward)


__all__ = [
    "RecordedBlock",
    "block_masks",
    "check_attention",
    "joint_masks",
    "use_context_attention",
]
