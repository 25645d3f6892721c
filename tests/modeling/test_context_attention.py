"""The attention function that transformers calls, with stand-ins for kernels that need a GPU."""

import pytest
import torch


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
