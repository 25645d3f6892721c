"""The model as a whole, in joint and prefix attention, around every family of backbones."""

import copy
from dataclasses import replace

import pytest
import torch

from cde_hf import CDEConfig, CDEModel, Context
from cde_hf.modeling.context import fingerprint


FAMILIES = ["nomic_bert", "modernbert", "bert", "roberta", "distilbert"]
MODES = ["joint", "prefix"]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def model(make_model, family, mode):
    return make_model(family, context_attention=mode)


def test_forward_reaches_both_stages(model, texts, context_documents):
    documents, mask = context_documents
    output = model(*texts, context_input_ids=documents, context_attention_mask=mask)
    context = model.first_stage_model(input_ids=documents, attention_mask=mask)
    expected = model.second_stage_model(input_ids=texts[0], attention_mask=texts[1], dataset_embeddings=context)
    torch.testing.assert_close(output.context_embeddings, context, atol=1e-6, rtol=0)
    torch.testing.assert_close(output.embeddings, expected, atol=1e-5, rtol=0)


def test_a_context_vector_contains_the_mean_of_the_second_stages_token_embeddings(model, context_documents):
    documents, mask = context_documents
    torch.nn.init.zeros_(model.first_stage_model.output_projection[-1].weight)
    words = torch.nn.functional.embedding(documents, model.get_input_embeddings().weight) * mask.unsqueeze(-1)
    vectors = model.encode_context(documents, mask).embeddings
    torch.testing.assert_close(vectors, words.sum(1) / mask.sum(1, keepdim=True), atol=1e-6, rtol=0)


def test_a_copy_reads_its_own_token_embeddings(model, context_documents):
    copied = copy.deepcopy(model)
    torch.nn.init.normal_(copied.get_input_embeddings().weight)
    first, second = (each.encode_context(*context_documents).embeddings for each in (model, copied))
    assert (first - second).abs().min() > 0
    assert not any("reader" in name for name in copied.state_dict())


def test_padding_and_batch_mates_never_change_a_vector(model, texts):
    input_ids, attention_mask = texts
    context = torch.randn(6, 32)
    together = model.second_stage_model(input_ids, attention_mask, context)
    for row, length in enumerate(attention_mask.sum(dim=1)):
        alone = model.second_stage_model(input_ids[row : row + 1, :length], dataset_embeddings=context)
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)


def test_padding_never_changes_a_context_vector(model, context_documents):
    input_ids, attention_mask = context_documents
    together = model.first_stage_model(input_ids, attention_mask)
    for row, length in enumerate(attention_mask.sum(dim=1)):
        alone = model.first_stage_model(input_ids[row : row + 1, :length])
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)


def pad_on_the_left(input_ids, attention_mask):
    lengths = attention_mask.sum(dim=1).tolist()
    return (
        torch.stack([row.roll(-length) for row, length in zip(tensor, lengths, strict=True)])
        for tensor in (input_ids, attention_mask)
    )


@pytest.mark.parametrize("mask_type", [torch.long, torch.bool])
def test_padding_on_the_left_changes_nothing(model, texts, context_documents, mask_type):
    context = model.first_stage_model(*context_documents)
    documents, mask = pad_on_the_left(*context_documents)
    assert mask[:, 0].sum() == 2 and mask.shape == (6, 9)
    torch.testing.assert_close(model.first_stage_model(documents, mask.to(mask_type)), context, atol=0, rtol=0)
    embeddings = model.second_stage_model(*texts, context)
    input_ids, mask = pad_on_the_left(*texts)
    padded_left = model.second_stage_model(input_ids, mask.to(mask_type), context)
    torch.testing.assert_close(padded_left, embeddings, atol=1e-6, rtol=0)


def test_the_context_is_a_set(model, texts):
    context = torch.randn(6, 32)
    embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
    permuted = model.second_stage_model(*texts, dataset_embeddings=context[torch.randperm(6)])
    torch.testing.assert_close(permuted, embeddings, atol=1e-5, rtol=0)


def test_word_order_matters(model, texts):
    input_ids, attention_mask = (tensor[:1] for tensor in texts)
    context = torch.randn(6, 32)
    embeddings = model.second_stage_model(input_ids, attention_mask, context)
    reversed_text = model.second_stage_model(input_ids.flip(1), attention_mask, context)
    assert (embeddings - reversed_text).abs().max() > 1e-3


@pytest.mark.parametrize("num_documents", [0, 1, 4])
def test_missing_documents_are_the_null_embedding(make_model, family, texts, num_documents):
    model = make_model(family, context_attention="joint", context_in_token_space=False)
    context = torch.randn(num_documents, 32)
    filled = torch.cat([context, model.second_stage_model.null_embedding.detach().expand(6 - num_documents, -1)])
    embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
    torch.testing.assert_close(
        embeddings, model.second_stage_model(*texts, dataset_embeddings=filled), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("num_documents", [2, 6])
def test_context_vectors_are_standardized_in_token_space(model, texts, num_documents):
    context = 3 + 2 * torch.randn(num_documents, 32)
    embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
    standardized = (context - context.mean(0)) / (context.var(0, correction=0) + 1e-6).sqrt()
    model.config.context_in_token_space = False
    expected = model.second_stage_model(*texts, dataset_embeddings=standardized)
    torch.testing.assert_close(embeddings, expected, atol=1e-4, rtol=0)


def test_a_context_of_one_document_or_of_equal_ones_tells_nothing(model, texts):
    expected = model.second_stage_model(*texts)
    for context in (torch.randn(1, 32), torch.randn(1, 32).expand(6, 32), torch.zeros(6, 32)):
        embeddings = model.second_stage_model(*texts, dataset_embeddings=context)
        torch.testing.assert_close(embeddings, expected, atol=1e-6, rtol=0)


def test_equal_context_documents_have_finite_gradients(model, texts):
    context = torch.randn(1, 32).repeat(6, 1).requires_grad_()
    model.second_stage_model(*texts, dataset_embeddings=context).pow(2).sum().backward()
    assert context.grad.isfinite().all()


def test_no_context_is_an_empty_one(model, texts):
    empty = model.second_stage_model(*texts, dataset_embeddings=torch.empty(0, 32))
    torch.testing.assert_close(model.second_stage_model(*texts), empty, atol=0, rtol=0)
    torch.testing.assert_close(model.encode_texts(*texts), empty, atol=1e-5, rtol=0)


def test_a_text_without_tokens_gives_no_nan(model):
    embeddings = model.second_stage_model(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))
    assert embeddings.isfinite().all()


def test_encode_texts_equals_forward(model, texts, context_documents):
    context = model.encode_context(*context_documents, mini_batch_size=4)
    assert (context.keys_values is not None) == (model.config.context_attention == "prefix")
    documents, mask = context_documents
    expected = model(*texts, context_input_ids=documents, context_attention_mask=mask).embeddings
    torch.testing.assert_close(model.encode_texts(*texts, context=context), expected, atol=1e-5, rtol=0)


def test_every_parameter_has_a_gradient_in_training(model, texts, context_documents):
    model.train()
    documents, mask = context_documents
    model(*texts, context_input_ids=documents, context_attention_mask=mask).embeddings.pow(2).sum().backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert not without
    zero = {name for name, parameter in model.named_parameters() if parameter.grad.abs().max() == 0}
    assert zero <= {"second_stage_model.null_embedding"}


@pytest.mark.parametrize("first", FAMILIES[:3])
@pytest.mark.parametrize("second", FAMILIES[:3])
def test_the_stages_may_differ(backbone_config, texts, context_documents, mode, first, second):
    config = CDEConfig(
        first_stage_config=backbone_config(first, hidden_size=24, num_hidden_layers=1),
        second_stage_config=backbone_config(second),
        context_size=6,
        context_attention=mode,
    )
    output = CDEModel(config).eval()(*texts, *context_documents)
    assert output.context_embeddings.shape == (6, 32)
    assert output.embeddings.shape == (4, 32)


def test_a_model_without_soft_prompts_works(make_model, mode, texts):
    model = make_model(num_soft_prompts=0, context_attention=mode)
    assert model.second_stage_model(*texts).shape == (4, 32)


def test_a_context_per_text_is_that_texts_context(make_model, texts):
    model = make_model(context_attention="joint")
    contexts = torch.randn(4, 5, 32)
    embeddings = model.second_stage_model(*texts, dataset_embeddings=contexts)
    for row in range(4):
        alone = model.second_stage_model(texts[0][row : row + 1], texts[1][row : row + 1], contexts[row])
        torch.testing.assert_close(alone[0], embeddings[row], atol=1e-5, rtol=0)


def test_far_text_tokens_of_modernbert_see_the_context_in_joint_attention(make_model):
    model = make_model("modernbert")
    seen = []
    for layer in model.second_stage_model.backbone.layers:
        if layer.attention_type == "full_attention":
            torch.nn.init.zeros_(layer.attn.Wo.weight)
    backbone = model.second_stage_model.backbone
    backbone.register_forward_hook(lambda module, inputs, output: seen.append(output.last_hidden_state[0, -1]))
    input_ids = torch.randint(3, 100, (1, 40))
    for _ in range(2):
        model.second_stage_model(input_ids, dataset_embeddings=torch.randn(6, 32))
    assert (seen[0] - seen[1]).abs().max() > 1e-3


def test_the_attention_implementations_agree(model, texts):
    context = torch.randn(6, 32)
    results = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        results.append(model.second_stage_model(*texts, dataset_embeddings=context))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=0)


def test_forward_goes_as_far_as_its_inputs_allow(make_model, mode, texts, context_documents):
    model = make_model(context_attention=mode)
    documents_alone = model(context_input_ids=context_documents[0], context_attention_mask=context_documents[1])
    assert documents_alone.context_embeddings is not None
    assert documents_alone.embeddings is None and documents_alone.context.keys_values is None
    vectors_alone = model(dataset_embeddings=documents_alone.context_embeddings)
    assert vectors_alone.embeddings is None
    assert (vectors_alone.context.keys_values is not None) == (mode == "prefix")
    expected = model(*texts, *context_documents).embeddings
    embeddings = model(*texts, context=vectors_alone.context).embeddings
    torch.testing.assert_close(embeddings, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (torch.zeros(7, 32), "has 7 documents, but this model reads at most 6.*cde_hf.sample_documents"),
        (torch.zeros(6, 31), r"must have the shape \(num_documents, 32\).*got \(6, 31\)"),
        (torch.zeros(3, 6, 32), r"or \(4, num_documents, 32\) for a context per text, got \(3, 6, 32\)"),
        (torch.zeros(32), r"got \(32,\)"),
    ],
)
def test_a_context_that_does_not_fit_is_refused(make_model, texts, context, message):
    with pytest.raises(ValueError, match=message):
        make_model(context_attention="joint").second_stage_model(*texts, dataset_embeddings=context)


def test_a_context_of_nan_is_refused(make_model, mode, texts):
    model = make_model(context_attention=mode)
    vectors = torch.full((6, 32), torch.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        model(*texts, dataset_embeddings=vectors)
    with pytest.raises(ValueError, match="NaN or infinite"):
        model.encode_texts(*texts, context=Context(vectors, fingerprint=fingerprint(model.second_stage_model)))


def test_too_many_documents_are_refused_in_prefix_attention(make_model, context_documents):
    model = make_model(context_attention="prefix", context_size=5)
    with pytest.raises(ValueError, match="has 6 documents, but this model reads at most 5"):
        model.encode_context(*context_documents)


@pytest.mark.parametrize("num_documents", [0, 5])
def test_a_checkpoint_without_null_embedding_says_so(make_model, mode, texts, num_documents):
    model = make_model(
        context_attention=mode, has_null_embedding=False, context_in_token_space=False, sequence_dropout_prob=0.0
    )
    model.second_stage_model(*texts, dataset_embeddings=torch.randn(6, 32))
    with pytest.raises(ValueError, match=f"no null embedding.*needs exactly 6 of them, got {num_documents}"):
        model.second_stage_model(*texts, dataset_embeddings=torch.randn(num_documents, 32))


def test_a_context_of_another_model_is_refused(make_model, mode, texts, context_documents):
    context = make_model(context_attention=mode).encode_context(*context_documents)
    with pytest.raises(ValueError, match="made by another model"):
        make_model(context_attention=mode).encode_texts(*texts, context=context)


def test_a_context_is_checked_again_after_training_and_loading_weights(make_model, mode, texts, context_documents):
    model = make_model(context_attention=mode)
    weights = {name: value + 0.1 for name, value in model.state_dict().items()}
    context = model.encode_context(*context_documents)
    model.encode_texts(*texts, context=context)
    model.train()(*texts, *context_documents).embeddings.sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()  # the default of the Trainer
    with pytest.raises(ValueError, match="before its weights were changed"):
        model.eval().encode_texts(*texts, context=context)
    context = model.encode_context(*context_documents)
    model.encode_texts(*texts, context=context)
    torch.nn.ModuleDict({"part": model}).load_state_dict({f"part.{name}": value for name, value in weights.items()})
    with pytest.raises(ValueError, match="before its weights were changed"):
        model.encode_texts(*texts, context=context)


def test_a_model_made_in_inference_mode_reads_a_context(make_model, mode, texts, context_documents):
    with torch.inference_mode():
        model = make_model(context_attention=mode)
        context = model.encode_context(*context_documents)
        assert model.encode_texts(*texts, context=context).isfinite().all()


def test_a_context_is_checked_once_and_not_for_every_batch(make_model, mode, texts, context_documents, monkeypatch):
    model = make_model(context_attention=mode)
    context = model.encode_context(*context_documents)
    model.encode_texts(*texts, context=context)

    def fail(module):
        raise RuntimeError("The weights were read.")

    monkeypatch.setattr("cde_hf.modeling.modeling_cde.fingerprint", fail)
    model.encode_texts(*texts, context=context)
    with pytest.raises(RuntimeError, match="The weights were read"):
        model.encode_texts(*texts, context=replace(context))


def test_two_contexts_at_once_are_refused(make_model, texts, context_documents):
    with pytest.raises(ValueError, match="not several"):
        make_model()(*texts, *context_documents, dataset_embeddings=torch.zeros(6, 32))
    with pytest.raises(ValueError, match="not both"):
        make_model().second_stage_model(*texts, dataset_embeddings=torch.zeros(6, 32), context=Context())


def test_a_tuple_is_returned_if_the_configuration_says_so(make_model, texts):
    model = make_model()
    model.config.return_dict = False
    assert isinstance(model(*texts), tuple)


def test_nothing_to_embed_is_refused(make_model):
    with pytest.raises(ValueError, match="nothing to embed"):
        make_model()()
