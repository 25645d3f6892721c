"""Attention to the context apart from the text, which starts as no attention at all."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer
from transformers.masking_utils import eager_mask

from cde_hf import CDEConfig, CDEModel
from cde_hf.modeling.pooling import mean_of_tokens


FAMILIES = ["nomic_bert", "modernbert", "bert", "roberta", "distilbert"]


@pytest.fixture(params=FAMILIES)
def model(make_model, request):
    model = make_model(request.param, context_attention="prefix", separate_context=True)
    for projection in model.second_stage_model.context_value_projections:
        torch.nn.init.normal_(projection.weight, std=0.3)
    return model


def attention_of_the_test(module, query, key, value, attention_mask, *, scaling, block=None, **kwargs):
    """Two attentions and their sum, as the documentation of `separate_context` says it."""
    output = F.softmax(query @ key.mT * scaling + (0 if attention_mask is None else attention_mask), dim=-1) @ value
    if block is not None:
        context_key, context_value = block[module.layer_idx]
        output = output + F.softmax(query @ context_key.mT * scaling, dim=-1) @ context_value
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("attention_of_the_test", attention_of_the_test)
AttentionMaskInterface.register("attention_of_the_test", eager_mask)


def expected_embeddings(model, input_ids, attention_mask, context):
    stage = model.second_stage_model
    block = [
        (key, (value.transpose(1, 2).flatten(2) @ projection.weight.T).view_as(value.transpose(1, 2)).transpose(1, 2))
        for (key, value), projection in zip(plain_block(model, context), stage.context_value_projections, strict=True)
    ]
    implementation = stage.backbone.config._attn_implementation
    stage.backbone.set_attn_implementation("attention_of_the_test")
    positions = stage._position_ids(input_ids.shape[1], input_ids.device)[:, model.config.num_block_tokens :]
    hidden_states = stage.backbone(
        inputs_embeds=stage.backbone.get_input_embeddings()(input_ids),
        attention_mask=attention_mask,
        position_ids=positions,
        block=block,
    ).last_hidden_state
    stage.backbone.config._attn_implementation_internal = implementation
    return stage.output_projection(mean_of_tokens(hidden_states, attention_mask))


def plain_block(model, context):
    """The context block before its values are projected."""
    model.config.separate_context = False
    block = model.second_stage_model.encode_block(context)
    model.config.separate_context = True
    return block


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("num_documents", [0, 4, 6])
def test_it_is_the_sum_of_two_attentions(model, texts, num_documents, attention):
    model.set_attn_implementation(attention)
    context = torch.randn(num_documents, 32)
    embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
    torch.testing.assert_close(embeddings, expected_embeddings(model, *texts, context), atol=1e-5, rtol=0)


def test_the_context_is_a_set_that_matters(model, texts):
    context = torch.randn(6, 32)
    stage = model.second_stage_model
    embeddings = stage(*texts, dataset_embeddings=context)
    torch.testing.assert_close(stage(*texts, dataset_embeddings=context.flip(0)), embeddings, atol=1e-5, rtol=0)
    assert (stage(*texts, dataset_embeddings=torch.randn(6, 32)) - embeddings).abs().amax(dim=1).min() > 1e-3


def test_other_texts_of_the_batch_do_not_matter(model, texts):
    input_ids, attention_mask = texts
    context = torch.randn(6, 32)
    together = model.second_stage_model(input_ids, attention_mask, dataset_embeddings=context)
    for row in range(len(input_ids)):
        alone = model.second_stage_model(
            input_ids[row : row + 1], attention_mask[row : row + 1], dataset_embeddings=context
        )
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)


def test_flash_attention_gives_the_same(make_model, texts, flash_kernel):
    model = make_model("bert", context_attention="prefix", separate_context=True)
    for projection in model.second_stage_model.context_value_projections:
        torch.nn.init.normal_(projection.weight, std=0.3)
    context = torch.randn(6, 32)
    expected = model.second_stage_model(*texts, dataset_embeddings=context)
    model.second_stage_model.backbone.config._attn_implementation_internal = "flash_attention_2"
    torch.testing.assert_close(
        model.second_stage_model(*texts, dataset_embeddings=context), expected, atol=1e-5, rtol=0
    )
    assert flash_kernel


@pytest.mark.parametrize("pooling", ["mean", "context_frequency"])
def test_a_model_around_an_encoder_starts_as_that_encoder(minilm, pooling):
    model = CDEModel.from_biencoder(minilm, context_size=4, context_attention="prefix", pooling=pooling)
    assert model.config.separate_context
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    documents = tokenizer(["a cat", "a dog", "a whale"], padding=True, return_tensors="pt")
    queries = tokenizer(["which pet barks, and which one sings?", "sea"], padding=True, return_tensors="pt")
    context = model.encode_context(documents["input_ids"], documents["attention_mask"])
    embeddings = model.encode_texts(queries["input_ids"], queries["attention_mask"], context=context)
    with torch.no_grad():
        hidden_states = AutoModel.from_pretrained(minilm)(**queries).last_hidden_state
    weights = queries["attention_mask"].float()
    if pooling == "context_frequency":
        weights = weights / (1 + context.token_frequencies[queries["input_ids"]] / 0.2)
    torch.testing.assert_close(embeddings, mean_of_tokens(hidden_states, weights), atol=1e-5, rtol=0)


def test_the_projections_learn_at_once_and_the_first_stage_next(make_model, texts, context_documents):
    model = make_model("bert", context_attention="prefix", separate_context=True).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first_stage = model.first_stage_model.output_projection[-1].weight
    documents, mask = context_documents
    sizes = []
    for _ in range(2):
        optimizer.zero_grad()
        model(*texts, context_input_ids=documents, context_attention_mask=mask).embeddings.pow(3).sum().backward()
        projection = model.second_stage_model.context_value_projections[0].weight
        sizes.append((projection.grad.abs().max().item(), first_stage.grad.abs().max().item()))
        optimizer.step()
    assert sizes[0][0] > 0 and sizes[0][1] == 0
    assert sizes[1][0] > 0 and sizes[1][1] > 0


def test_joint_attention_cannot_be_separate(backbone_config):
    stages = {"first_stage_config": backbone_config(), "second_stage_config": backbone_config()}
    with pytest.raises(StrictDataclassError, match="`separate_context=True` needs `context_attention='prefix'`, got"):
        CDEConfig(**stages, context_attention="joint", separate_context=True)
