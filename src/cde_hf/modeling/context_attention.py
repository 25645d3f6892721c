"""
Attention of the second stage: how text tokens attend to a precomputed context block.

In prefix attention the context block (context vectors and soft prompt) is computed separately:

1. The block goes through the backbone alone, and each layer's keys and values are recorded.
2. A text goes through the backbone alone, and each layer attends to the recorded keys and values and to its own.

Both happen in the attention function. transformers looks it up by name, and its encoders pass unknown keyword
arguments on to it, so no backbone needs to be rewritten. The attention modules look up the function registered here,
which calls the implementation that the backbone's configuration names.

On the CPU the context's keys are not copied for every text ([`merged_attention`]):

3. The queries of the whole batch, as one long text, attend to the context.
4. The queries of each text attend to its own keys.
5. Both outputs are averaged, weighted by their sums of exponentials. The kernel returns the log-sum-exps.

The kernel's backward pass takes an output and its log-sum-exp, from which it recomputes the probabilities. Given the
*merged* output and the log-sum-exp over *all* keys, it returns the gradients of attention over all keys, restricted to
the keys it is given:

6. The gradients of the context's keys and values, and the first part of the queries' gradients.
7. The gradients of the texts' own keys and values, and the rest of the queries' gradients.
"""

import copy
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, sliding_window_bidirectional_mask_function
from transformers.modeling_flash_attention_utils import _flash_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .backbones import has_local_layers


# Names are global in a process and each checkpoint has its own copy of this code, so each copy needs its own name.
_NAME = f"cde_{hashlib.blake2b(__name__.encode(), digest_size=4).hexdigest()}"

_SUPPORTED = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")

# PyTorch's flash-attention kernel for the CPU.
_cpu_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_cpu_kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

_FEWEST_COPIED_KEYS = 256


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
    separate_context: bool = False,
    position_ids: Tensor | None = None,  # not passed on: flash-attention reads repeated zeros as packed texts
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """
    Attention function for transformers that records a context block, or prepends a recorded one to the text.

    Args:
        module (`nn.Module`):
            The attention module. Its `layer_idx` selects its part of the block, its `backbone_config` the attention
            implementation.
        query, key, value (`torch.Tensor` of shape `(batch_size, num_heads, sequence_length, head_dim)`):
            The projected inputs, after rotation if the backbone is rotary.
        attention_mask (`torch.Tensor`, *optional*):
            Mask over context and text, in the form that the implementation expects.
        recorded (`RecordedBlock`, *optional*):
            Filled with the keys and values of each layer. Recomputation under gradient checkpointing does not change
            it.
        context_keys_values (`tuple`, *optional*):
            Keys and values of each layer, of shape `(1, num_heads, num_block_tokens, head_dim)`.
        separate_context (`bool`, *optional*, defaults to `False`):
            Whether context and text have separate softmaxes whose outputs are added. The mask then covers the text
            alone.
    """
    implementation: str = module.backbone_config._attn_implementation
    attend: Callable[..., tuple[Tensor, Tensor | None]] = partial(_attend, implementation, module, **kwargs)
    if recorded is not None and module.layer_idx not in recorded.keys_values:
        recorded.keys_values[module.layer_idx] = (key, value)
    if context_keys_values is not None:
        context_key, context_value = context_keys_values[module.layer_idx]
        # A block may come from another device, precision or autocast state than the texts.
        context_key, context_value = context_key.to(key), context_value.to(value)
        if separate_context:
            output, probabilities = attend(query, key, value, attention_mask)
            context_output, _ = attend(as_one_text(query), context_key, context_value, None)
            return output + context_output.view_as(output), probabilities
        has_dropout = kwargs.get("dropout", 0.0) > 0  # merging never sees the probabilities that dropout acts on
        if implementation == "sdpa" and not has_dropout and is_merging_faster(query, context_key):
            scaling = kwargs.get("scaling")
            return merged_attention(query, key, value, context_key, context_value, attention_mask, scaling), None
        key = torch.cat([context_key.expand(key.shape[0], -1, -1, -1), key], dim=2)
        value = torch.cat([context_value.expand(value.shape[0], -1, -1, -1), value], dim=2)
    return attend(query, key, value, attention_mask)


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
    return _layer_masks(backbone, inputs_embeds, attention_mask, sees)


def text_masks(
    backbone: PreTrainedModel, inputs_embeds: Tensor, attention_mask: Tensor, num_block_tokens: int
) -> Tensor | dict[str, Any]:
    """Mask for a run over the text alone, whose keys are the context block's followed by its own."""

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key < num_block_tokens) | is_near(batch, head, query + num_block_tokens, key)

    if not has_local_layers(backbone.config):
        return attention_mask
    is_near = sliding_window_bidirectional_mask_function(backbone.config.sliding_window)
    return _layer_masks(backbone, inputs_embeds, attention_mask, sees)


def block_masks(backbone: PreTrainedModel) -> dict[str, None] | None:
    """Mask for a run over the context block alone: full attention in every layer."""
    if not has_local_layers(backbone.config):
        return None
    return {"full_attention": None, "sliding_attention": None}


def _layer_masks(
    backbone: PreTrainedModel, inputs_embeds: Tensor, attention_mask: Tensor, sees: Callable[..., Tensor]
) -> dict[str, Any]:
    arguments = (backbone.config, inputs_embeds, attention_mask)
    return {
        "full_attention": create_bidirectional_mask(*arguments),
        "sliding_attention": create_bidirectional_mask(*arguments, and_mask_function=sees),
    }


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
    sliding_window: int | None = None,
    deterministic: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    # Under autocast a backbone may rotate queries and keys in float32, which the kernel does not accept.
    query, key = query.to(value.dtype), key.to(value.dtype)
    # transformers' `flash_attention_forward` would look up the kernel by the name in `module.config`, which is ours.
    output = _flash_attention_forward(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attention_mask,
        query_length=query.shape[2],
        is_causal=False,
        dropout=dropout,
        softmax_scale=scaling,
        sliding_window=sliding_window,
        deterministic=deterministic,
        attn_implementation=implementation,
    )
    return output, None


def merged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_key: Tensor,
    context_value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
) -> Tensor:
    """
    Attention over a shared context and each text's own keys. The output is bit-identical with and without gradients.

    Args:
        query, key, value (`torch.Tensor` of shape `(batch_size, num_heads, sequence_length, head_dim)`):
            Projections of the texts.
        context_key, context_value (`torch.Tensor` of shape `(1, num_heads, num_block_tokens, head_dim)`):
            Keys and values of the context block.
        attention_mask (`torch.Tensor` of shape `(batch_size, 1, sequence_length, num_block_tokens + sequence_length)`,
        *optional*):
            `True` where a query may attend. The context is always visible.
        scaling (`float`, *optional*):
            Multiplier of the scores. Defaults to the inverse square root of `head_dim`.

    Returns:
        `torch.Tensor` of shape `(batch_size, sequence_length, num_heads, head_dim)`: The outputs.
    """
    # Under autocast a backbone may rotate queries and keys in another precision than the values.
    query, key, context_key = (tensor.to(value.dtype) for tensor in (query, key, context_key))
    own_mask = None
    if attention_mask is not None:
        is_visible = attention_mask[..., context_key.shape[2] :]
        lowest = torch.finfo(query.dtype).min  # minus infinity would give NaN for a text without tokens
        own_mask = torch.zeros_like(is_visible, dtype=query.dtype).masked_fill(~is_visible, lowest)
    inputs = (query, key, value, context_key, context_value, own_mask, scaling)
    output = _MergedAttention.apply(*inputs) if torch.is_grad_enabled() else _attend_and_merge(*inputs)[0]
    return output.transpose(1, 2).contiguous()


def is_merging_faster(query: Tensor, context_key: Tensor) -> bool:
    """
    Whether merging is faster than copying the context's keys for each text.

    Measured on the CPU, with and without gradients. Merging wins if the block is at least as long as the texts and the
    copies would cost more than a second kernel call. The answer depends on shapes alone, because both passes of a
    gradient cache must take the same path.
    """
    num_block_tokens = context_key.shape[2]
    is_much_copied = len(query) * num_block_tokens >= _FEWEST_COPIED_KEYS
    return query.device.type == "cpu" and is_much_copied and num_block_tokens >= query.shape[2]


class _MergedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context_key: Tensor,
        context_value: Tensor,
        own_mask: Tensor | None,
        scaling: float | None,
    ) -> Tensor:
        output, context_logarithm, own_logarithm = _attend_and_merge(
            query, key, value, context_key, context_value, own_mask, scaling
        )
        logarithm = torch.logaddexp(context_logarithm, own_logarithm)
        ctx.save_for_backward(query, key, value, context_key, context_value, own_mask, output, logarithm)
        ctx.scaling = scaling
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, context_key, context_value, own_mask, output, logarithm = ctx.saved_tensors
        settings = {"dropout_p": 0.0, "is_causal": False, "scale": ctx.scaling}
        # Step (6)
        context_query_gradient, *context_gradients = _cpu_kernel_backward(
            as_one_text(gradient),
            as_one_text(query),
            context_key,
            context_value,
            as_one_text(output),
            as_one_text(logarithm),
            **settings,
        )
        # Step (7)
        query_gradient, *own_gradients = _cpu_kernel_backward(
            gradient, query, key, value, output, logarithm, attn_mask=own_mask, **settings
        )
        query_gradient = query_gradient + _as_texts(context_query_gradient, len(query))
        return query_gradient, *own_gradients, *context_gradients, None, None


def _attend_and_merge(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_key: Tensor,
    context_value: Tensor,
    own_mask: Tensor | None,
    scaling: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The merged outputs, and the log-sum-exps of both parts."""
    # Step (3)
    context_output, context_logarithm = _cpu_kernel(as_one_text(query), context_key, context_value, scale=scaling)
    context_output = _as_texts(context_output, len(query))
    context_logarithm = _as_texts(context_logarithm, len(query))
    # Step (4)
    own_output, own_logarithm = _cpu_kernel(query, key, value, attn_mask=own_mask, scale=scaling)
    # Step (5)
    context_share = torch.sigmoid(context_logarithm - own_logarithm).unsqueeze(-1).to(query.dtype)
    return own_output.lerp_(context_output, context_share), context_logarithm, own_logarithm


def as_one_text(tensor: Tensor) -> Tensor:
    """From `(batch_size, num_heads, sequence_length, ...)` to `(1, num_heads, batch_size * sequence_length, ...)`."""
    return tensor if tensor.shape[0] == 1 else tensor.transpose(0, 1).flatten(1, 2).unsqueeze(0)


def _as_texts(tensor: Tensor, batch_size: int) -> Tensor:
    """The inverse of [`as_one_text`]."""
    return tensor if batch_size == 1 else tensor.squeeze(0).unflatten(1, (batch_size, -1)).transpose(0, 1)


AttentionInterface.register(_NAME, context_attention_forward)


__all__ = [
    "RecordedBlock",
    "block_masks",
    "check_attention",
    "is_merging_faster",
    "joint_masks",
    "merged_attention",
    "text_masks",
    "use_context_attention",
]
