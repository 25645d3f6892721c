"""Prefix attention against the same network written in another way: two attentions and their sum."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from cde_hf import Context


FAMILIES = ["nomic_bert", "modernbert", "bert", "roberta", "distilbert"]


def attention_of_the_test(module, query, key, value, attention_mask, *, scaling, seen=None, block=None, **kwargs):
    """Attention by its formula. Keys and values go to `seen`; those of `block` have a softmax of their own."""
    output = F.softmax(query @ key.mT * scaling + (0 if attention_mask is None else attention_mask), dim=-1) @ value
    if seen is not None:
        seen.append((key, value))
    if block is not None:
        context_key, context_value = block[module.layer_idx]
        output = output + F.softmax(query @ context_key.mT * scaling, dim=-1) @ context_value
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("attention_of_the_test", attention_of_the_test)
AttentionMaskInterface.register("attention_of_the_test", eager_mask)


def expected_embeddings(model, input_ids, attention_mask, context):
    """Embeddings by the documentation, without the model's own second stage."""
    stage, config = model.second_stage_model, model.config
    backbone, length = stage.backbone, input_ids.shape[1]
    implementation = backbone.config._attn_implementation
    backbone.set_attn_implementation("attention_of_the_test")
    num_documents, num_missing = len(context), config.context_size - len(context)

    spread = (context - context.mean(0)).pow(2).mean(0).add(1e-6).sqrt() if num_documents else 1.0
    soft_prompt = stage.soft_prompt_projection(torch.ones_like(stage.null_embedding)).view(-1, config.hidden_size)
    rows = [(context - context.mean(0)) / spread] if num_documents else []
    rows = torch.cat([*rows, stage.null_embedding.expand(num_missing, -1), soft_prompt])
    embeddings = backbone.embeddings
    is_rotary = backbone.config.model_type in ("nomic_bert", "modernbert")
    start = 2 if backbone.config.model_type == "roberta" else 0
    if hasattr(embeddings, "token_type_embeddings"):
        rows = rows - embeddings.token_type_embeddings.weight[0]
    if is_rotary:
        positions = [0] * config.context_size + list(range(config.context_size, len(rows) + length))
    else:
        rows = rows - embeddings.position_embeddings.weight[start]
        positions = [start] * len(rows) + list(range(start, start + length))
    positions = torch.tensor([positions])

    block = []
    all_see_all = torch.zeros(1, 1, len(rows), len(rows), dtype=rows.dtype)
    if backbone.config.model_type == "modernbert":
        all_see_all = {"full_attention": all_see_all, "sliding_attention": all_see_all}
    backbone(inputs_embeds=rows[None], attention_mask=all_see_all, position_ids=positions[:, : len(rows)], seen=block)
    for layer, (key, value) in enumerate(block):
        heads = value.shape[1]
        weight = stage.context_value_projections[layer].weight
        value = value[0].transpose(0, 1).flatten(1)  # (num_block_tokens, hidden_size)
        read = value @ weight.T
        if num_documents:
            documents = value[:num_documents]
            read = torch.cat([read[:num_documents] + documents - documents.mean(0), read[num_documents:]])
        block[layer] = (key, read.unflatten(1, (heads, -1)).transpose(0, 1)[None])
    hidden_states = backbone(
        inputs_embeds=backbone.get_input_embeddings()(input_ids),
        attention_mask=attention_mask,
        position_ids=positions[:, len(rows) :],
        block=block,
    ).last_hidden_state
    backbone.set_attn_implementation(implementation)
    weights = attention_mask.to(hidden_states.dtype).unsqueeze(-1)
    return stage.output_projection((hidden_states * weights).sum(1) / weights.sum(1))


@pytest.fixture(params=FAMILIES)
def prefix_model(make_model, request):
    return make_model(request.param, context_attention="prefix")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("num_documents", [0, 2, 4, 6])
def test_it_is_the_sum_of_two_attentions(prefix_model, texts, num_documents, attention):
    prefix_model.set_attn_implementation(attention)
    context = torch.randn(num_documents, 32)
    embeddings = prefix_model.second_stage_model(*texts, dataset_embeddings=context)
    torch.testing.assert_close(embeddings, expected_embeddings(prefix_model, *texts, context), atol=1e-5, rtol=0)


def test_gradients_are_those_of_two_attentions(prefix_model, texts, context_documents):
    model = prefix_model.double()
    documents, mask = (tensor[:5] for tensor in context_documents)  # the sixth is the null embedding
    gradients = []
    for run in (
        lambda: model(*texts, context_input_ids=documents, context_attention_mask=mask).embeddings,
        lambda: expected_embeddings(model, *texts, model.first_stage_model(documents, mask)),
    ):
        model.zero_grad()
        run().pow(3).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    ours, expected = gradients
    tolerance = 1e-5 if model.config.second_stage_config.model_type == "modernbert" else 1e-9  # it rotates in float32
    assert ours.keys() == expected.keys()
    for name in ours:
        scale = expected[name].abs().max().item()
        torch.testing.assert_close(ours[name], expected[name], atol=tolerance * max(1.0, scale), rtol=0)
    assert any("first_stage_model.backbone" in name and g.abs().max() > 1e-6 for name, g in ours.items())


def test_other_texts_of_the_batch_do_not_matter(prefix_model, texts):
    input_ids, attention_mask = texts
    context = torch.randn(6, 32)
    together = prefix_model.second_stage_model(input_ids, attention_mask, dataset_embeddings=context)
    for row in range(len(input_ids)):
        alone = prefix_model.second_stage_model(
            input_ids[row : row + 1], attention_mask[row : row + 1], dataset_embeddings=context
        )
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)


def test_a_block_is_the_same_as_its_context_vectors(prefix_model, texts):
    context = torch.randn(5, 32)
    block = Context(keys_values=prefix_model.second_stage_model.encode_block(context))
    from_block = prefix_model.second_stage_model(*texts, context=block)
    from_vectors = prefix_model.second_stage_model(*texts, dataset_embeddings=context)
    torch.testing.assert_close(from_block, from_vectors, atol=0, rtol=0)


def test_the_context_is_a_set(prefix_model, texts):
    context = torch.randn(6, 32)
    forward, backward = (
        prefix_model.second_stage_model(*texts, dataset_embeddings=rows) for rows in (context, context.flip(0))
    )
    torch.testing.assert_close(forward, backward, atol=1e-5, rtol=0)


def test_the_context_matters(prefix_model, texts):
    first, second = (prefix_model.second_stage_model(*texts, dataset_embeddings=torch.randn(6, 32)) for _ in range(2))
    assert (first - second).abs().amax(dim=1).min() > 1e-3


def test_far_text_tokens_of_modernbert_see_the_context_in_a_local_layer(make_model, backbone_config):
    model = make_model("modernbert", context_attention="prefix")
    backbone = model.second_stage_model.backbone
    for layer in backbone.layers:
        if layer.attention_type == "full_attention":
            torch.nn.init.zeros_(layer.attn.Wo.weight)
    input_ids = torch.randint(3, 100, (1, 40))
    seen = []
    backbone.register_forward_hook(lambda module, inputs, output: seen.append(output.last_hidden_state[0, -1]))
    for _ in range(2):
        block = model.second_stage_model.encode_block(torch.randn(6, 32))
        model.second_stage_model(input_ids, context=Context(keys_values=block))
    assert (seen[1] - seen[3]).abs().max() > 1e-3


def test_a_cast_block_serves_the_cast_model(make_model, texts, context_documents):
    model = make_model(context_attention="prefix", pooling="context_frequency")
    context = model.encode_context(*context_documents)
    expected = model.encode_texts(*texts, context=context)
    model = model.to(torch.bfloat16)
    embeddings = model.encode_texts(*texts, context=context.to(dtype=torch.bfloat16))
    assert embeddings.dtype == torch.bfloat16
    assert torch.cosine_similarity(embeddings.float(), expected).min() > 0.99


def test_a_block_is_refused_after_a_training_step(make_model, texts, context_documents):
    model = make_model(context_attention="prefix")
    context = model.encode_context(*context_documents)
    model(*texts, *context_documents).embeddings.sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()  # the default of the Trainer
    with pytest.raises(ValueError, match="before its weights were changed"):
        model.encode_texts(*texts, context=context)


def test_a_block_follows_the_precision_of_the_texts(make_model, texts, context_documents):
    model = make_model(context_attention="prefix")
    context = model.encode_context(*context_documents)
    expected = model.encode_texts(*texts, context=context)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = model.encode_texts(*texts, context=context)
    assert torch.cosine_similarity(embeddings.float(), expected).min() > 0.98
    assert torch.isfinite(model.bfloat16().encode_texts(*texts, context=context)).all()


def test_the_block_of_no_context_moves(make_model):
    model = make_model(context_attention="prefix")
    context = model.prepare_context(Context()).to(dtype=torch.bfloat16)
    assert context.keys_values[0][0].dtype == torch.bfloat16


def test_a_block_of_another_size_is_refused(make_model, texts, context_documents):
    model, larger = (make_model(context_attention="prefix", context_size=size) for size in (6, 7))
    block = Context(keys_values=model.second_stage_model.encode_block())
    with pytest.raises(ValueError, match="3 layers of 8 tokens, but this model needs 3 layers of 9"):
        larger.second_stage_model(*texts, context=block)


def test_a_context_per_text_is_refused(make_model, texts):
    stage = make_model(context_attention="prefix").second_stage_model
    with pytest.raises(ValueError, match="all texts share one context"):
        stage(*texts, dataset_embeddings=torch.randn(4, 6, 32))


def test_joint_attention_has_no_block(make_model, texts):
    block = make_model(context_attention="prefix").second_stage_model.encode_block()
    stage = make_model(context_attention="joint").second_stage_model
    with pytest.raises(ValueError, match="context_attention='joint'"):
        stage.encode_block()
    with pytest.raises(ValueError, match="has the context block of prefix attention"):
        stage(*texts, context=Context(keys_values=block))
