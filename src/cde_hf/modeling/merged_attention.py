"""
Attention over a shared context and each text's own keys, without a copy of the context's keys for every text.

1. The queries of the whole batch, as one long text, attend to the context.
2. The queries of each text attend to its own keys.
3. Both results are mixed in the ratio of their sums of exponentials, whose logarithms the kernel returns.

The backward pass of the kernel takes a result and the logarithm of its sum of exponentials, from which it computes the
probabilities again. Given the *mixed* result and the logarithm of the *whole* sum, it therefore gives the gradients of
attention over all keys, for any part of them:

4. The gradients of the context's keys and values, and a part of those of the queries.
5. The gradients of the texts' own keys and values, and the rest of those of the queries.

The kernel is that of the CPU.
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
    Attention over a shared context and each text's own keys. It has gradients, and gives the same bits without them.

    Args:
        query, key, value (`torch.Tensor` of shape `(batch_size, num_heads, sequence_length, head_dim)`):
            Of the texts.
        context_key, context_value (`torch.Tensor` of shape `(1, num_heads, num_block_tokens, head_dim)`):
            Of the context block.
        attention_mask (`torch.Tensor` of shape `(batch_size, 1, sequence_length, num_block_tokens + sequence_length)`,
        *optional*):
            `True` where a text may look. The context is always visible.
        scaling (`float`, *optional*):
            Factor of the scores. Defaults to the inverse root of `head_dim`.

    Returns:
        `torch.Tensor` of shape `(batch_size, sequence_length, num_heads, head_dim)`: The outputs.
    """
    # Under autocast a backbone may rotate queries and keys in another precision than that of the values.
    query, key, context_key = (tensor.to(value.dtype) for tensor in (query, key, context_key))
    own_mask = None
    if attention_mask is not None:
        is_visible = attention_mask[..., context_key.shape[2] :]
        lowest = torch.finfo(query.dtype).min  # not minus infinity: a text without tokens would give NaN
        own_mask = torch.zeros_like(is_visible, dtype=query.dtype).masked_fill(~is_visible, lowest)
    inputs = (query, key, value, context_key, context_value, own_mask, scaling)
    output = _MergedAttention.apply(*inputs) if torch.is_grad_enabled() else _attend_and_merge(*inputs)[0]
    return output.transpose(1, 2).contiguous()


def is_merging_faster(query: Tensor, context_key: Tensor) -> bool:
    """
    Whether merging beats copying the context's keys for each text.

    Measured on the CPU, with and without gradients: where the block is at least as long as the texts, and the copies
    are not so few that a second call of the kernel costs more than they do. The answer depends on shapes alone, for
    the passes of a gradient cache, without a graph and with one, must take the same path.
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
    """The merged outputs, and the logarithms of both sums of exponentials."""
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
    """The way back from [`as_one_text`]."""
    return tensor if batch_size == 1 else tensor.squeeze(0).unflatten(1, (batch_size, -1)).transpose(0, 1)


__all__ = ["as_one_text", "is_merging_faster", "merged_attention"]
