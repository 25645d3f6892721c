"""The interface of flash-attn 2.8.3 by plain matrix products, with its checks. Runs on the CUDA twin."""

import torch


__version__ = "2.8.3"

needs_half_precision = True  # switched off to compare with another implementation in float32
calls = []  # names of the functions, in the order in which they were called


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), **options):
    """Attention of texts of one length, all of shape `(batch_size, length, num_heads, head_dim)`."""
    _check(q, k, v, causal, window_size, options)
    assert len(q) == len(k) == len(v)
    calls.append("flash_attn_func")
    return torch.stack([_attend(*row, softmax_scale, dropout_p) for row in zip(q, k, v, strict=True)])


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    **options,
):
    """Attention of texts one after the other, all of shape `(num_tokens, num_heads, head_dim)`."""
    _check(q, k, v, causal, window_size, options)
    calls.append("flash_attn_varlen_func")
    bounds = []
    for cumulated, longest, tokens in ((cu_seqlens_q, max_seqlen_q, q), (cu_seqlens_k, max_seqlen_k, k)):
        assert cumulated.dtype == torch.int32 and cumulated.is_contiguous() and cumulated.device == q.device
        assert isinstance(longest, int), type(longest)
        ends = getattr(cumulated, "numbers", cumulated).tolist()
        assert ends[0] == 0 and ends[-1] == len(tokens) and ends == sorted(ends)
        assert max(end - start for start, end in zip(ends, ends[1:], strict=False)) <= longest
        bounds.append([slice(start, end) for start, end in zip(ends, ends[1:], strict=False)])
    rows = zip(*bounds, strict=True)
    return torch.cat([_attend(q[part], k[keys], v[keys], softmax_scale, dropout_p) for part, keys in rows])


def flash_attn_with_kvcache(*args, **kwargs):
    raise NotImplementedError


def _check(q, k, v, causal, window_size, options):
    assert q.dtype == k.dtype == v.dtype, "flash-attention does not mix precisions"
    assert not needs_half_precision or q.dtype in (torch.float16, torch.bfloat16), q.dtype
    assert q.device == k.device == v.device and q.shape[-1] <= 256
    assert not causal and tuple(window_size) == (-1, -1) and not any(options.values())


def _attend(q, k, v, scale, dropout):
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * (scale or q.shape[-1] ** -0.5)
    return torch.einsum("hqk,khd->qhd", torch.dropout(scores.softmax(-1), dropout, True), v.float()).to(q.dtype)
