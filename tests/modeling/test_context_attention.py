"""The attention function that transformers calls, with stand-ins for kernels that need a GPU."""

import pytest
import torch
import torch.nn.functional as F

from cde_hf import CDEConfig, CDEModel
from cde_hf.modeling.context_attention import merged_attention


@pytest.mark.parametrize("mode", ["joint", "prefix"])
@pytest.mark.parametrize("family", ["nomic_bert", "bert"])
@pytest.mark.usefixtures("flash_kernel")
def test_flash_attention_gets_what_it_can_read(make_model, texts, family, mode):
    model = make_model(family, context_attention=mode)
    context = torch.randn(6, 32)
    expected = model.second_stage_model(*texts, dataset_embeddings=context)
    model.second_stage_model.backbone.config._attn_implementation_internal = "flash_attention_2"
    embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
    torch.testing.assert_close(embeddings, expected, atol=1e-5, rtol=0)


def test_dropout_is_the_same_with_and_without_gradients(backbone_config, texts):
    # The first pass of gradient caching runs in training mode without gradients, and is replayed with them.
    bert = backbone_config("bert", attention_probs_dropout_prob=0.5)
    config = CDEConfig(first_stage_config=bert, second_stage_config=bert, context_size=6, context_attention="prefix")
    stage = CDEModel(config).train().second_stage_model
    context, results = torch.randn(6, 32), []
    for seed, has_gradients in ((1, True), (1, False), (2, False)):
        torch.manual_seed(seed)
        with torch.set_grad_enabled(has_gradients):
            results.append(stage(*texts, dataset_embeddings=context).detach())
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=0)
    assert (results[1] - results[2]).abs().max() > 1e-4


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
