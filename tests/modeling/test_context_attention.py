"""The attention function that transformers calls, with stand-ins for kernels that need a GPU."""

import pytest
import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cde_hf.modeling.context_attention import merged_attention


def varlen_flash_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """What flash-attention does with a two-dimensional mask: texts are unpadded, attended to and padded again."""
    assert "position_ids" not in kwargs, "flash-attention takes repeated positions for packed texts"
    batch_size, _, query_length, _ = query.shape
    key_length = key.shape[2]
    output = torch.zeros_like(query)
    mask = torch.ones(batch_size, key_length, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    assert mask.shape == (batch_size, key_length)
    for row in range(batch_size):
        keys, queries = mask[row], mask[row, -query_length:]
        output[row][:, queries] = F.scaled_dot_product_attention(
            query[row][:, queries], key[row][:, keys], value[row][:, keys], scale=scaling
        )
    return output.transpose(1, 2), None


@pytest.mark.parametrize("mode", ["joint", "prefix"])
@pytest.mark.parametrize("family", ["nomic_bert", "bert"])
def test_flash_attention_gets_what_it_can_read(make_model, texts, monkeypatch, family, mode):
    model = make_model(family, context_attention=mode)
    context = torch.randn(6, 32)
    expected = model.second_stage_model(*texts, dataset_embeddings=context)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", varlen_flash_attention)
    model.second_stage_model.backbone.config._attn_implementation_internal = "flash_attention_2"
    embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
    torch.testing.assert_close(embeddings, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["nomic_bert", "modernbert", "bert"])
@pytest.mark.parametrize("num_texts", [1, 4])
def test_merging_without_gradients_equals_copying_with_them(make_model, texts, family, num_texts):
    stage = make_model(family, context_attention="prefix").second_stage_model
    inputs = [tensor[:num_texts] for tensor in texts]
    context = torch.randn(6, 32)
    expected = stage(*inputs, dataset_embeddings=context)
    with torch.no_grad():
        merged = stage(*inputs, dataset_embeddings=context)
    torch.testing.assert_close(merged, expected, atol=1e-5, rtol=0)


def test_merging_gives_no_nan_for_a_text_without_tokens():
    query, key, value = (torch.randn(2, 3, 5, 8) for _ in range(3))
    context_key, context_value = torch.randn(1, 3, 4, 8), torch.randn(1, 3, 4, 8)
    mask = torch.ones(2, 1, 5, 9, dtype=torch.bool)
    mask[1, :, :, 4:] = False
    output = merged_attention(query, key, value, context_key, context_value, mask, None)
    expected = F.scaled_dot_product_attention(query[1:], context_key, context_value).transpose(1, 2)
    torch.testing.assert_close(output[1:], expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["joint", "prefix"])
@pytest.mark.parametrize("family", ["nomic_bert", "modernbert"])
def test_flex_attention_gives_the_same_numbers(make_model, texts, family, mode):
    model = make_model(family, context_attention=mode)
    context = torch.randn(6, 32)
    expected = model.second_stage_model(*texts, dataset_embeddings=context)
    model.set_attn_implementation("flex_attention")
    with torch.no_grad():  # it has no backward pass on the CPU
        embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
    torch.testing.assert_close(embeddings, expected, atol=1e-5, rtol=0)
