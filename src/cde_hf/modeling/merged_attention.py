"""
Attention over a shared context and each text's own keys, without copying the context's keys for every text.

1. The queries of the whole batch, as one long text, attend to the context.
2. The queries of each text attend to its own keys.
3. Both outputs are averaged, weighted by their sums of exponentials. The kernel returns the log-sum-exps.

The kernel's backward pass takes an output and its log-sum-exp, from which it recomputes the probabilities. Given the
*merged* output and the log-sum-exp over *all* keys, it returns the gradients of attention over all keys, restricted to
the keys it is given:

4. The gradients of the context's keys and values, and the first part of the queries' gradients.
5. The gradients of the texts' own keys and values, and the rest of the queries' gradients.

It uses PyTorch's flash-attention kernel for the CPU.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

_FEWEST_COPIED_KEYS = 256


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
        ctx: FunctionCtx,
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
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, context_key, context_value, own_mask, output, logarithm = ctx.saved_tensors
        settings = {"dropout_p": 0.0, "is_causal": False, "scale": ctx.scaling}
        # Step (4)
        context_query_gradient, *context_gradients = _attend_backward(
            as_one_text(gradient),
            as_one_text(query),
            context_key,
            context_value,
            as_one_text(output),
            as_one_text(logarithm),
            **settings,
        )
        # Step (5)
        query_gradient, *own_gradients = _attend_backward(
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
    # Step (1)
    context_output, context_logarithm = _attend(as_one_text(query), context_key, context_value, scale=scaling)
    context_output = _as_texts(context_output, len(query))
    context_logarithm = _as_texts(context_logarithm, len(query))
    # Step (2)
    own_output, own_logarithm = _attend(query, key, value, attn_mask=own_mask, scale=scaling)
    # Step (3)
    context_share = torch.sigmoid(context_logarithm - own_logarithm).unsqueeze(-1).to(query.dtype)
    return own_output.lerp_(context_output, context_share), context_logarithm, own_logarithm


def as_one_text(tensor: Tensor) -> Tensor:
    """From `(batch_size, num_heads, sequence_length, ...)` to `(1, num_heads, batch_size * sequence_length, ...)`."""
    return tensor if len(tensor) == 1 else tensor.transpose(0, 1).flatten(1, 2).unsqueeze(0)


def _as_texts(tensor: Tensor, batch_size: int) -> Tensor:
    """The inverse of [`as_one_text`]."""
    return tensor if batch_size == 1 else tensor.squeeze(0).unflatten(1, (batch_size, -1)).transpose(0, 1)


__all__ = ["as_one_text", "is_merging_faster", "merged_attention"]
