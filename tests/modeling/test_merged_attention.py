"""Attention over a shared context merged with that over each text, held to attention over copies of the context."""

import pytest
import torch
import torch.nn.functional as F

from cde_hf import CDEConfig, CDEModel
from cde_hf.modeling import context_attention
from cde_hf.modeling.context_attention import is_merging_faster, merged_attention


def attention_over_copies(query, key, value, context_key, context_value, attention_mask, scaling):
    """The same in plain matrix products."""
    key, value = (
        torch.cat([context.expand(len(own), -1, -1, -1), own], dim=2)
        for context, own in ((context_key, key), (context_value, value))
    )
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2)


def random_inputs(dtype, batch_size=4, length=5, num_block_tokens=7):
    """Queries, keys and values of texts, then keys and values of the block, as projections leave them."""
    shapes = [(batch_size, length, 3, 8)] * 3 + [(1, num_block_tokens, 3, 8)] * 2
    return [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def padding_mask(lengths, length=5, num_block_tokens=7):
    visible = torch.arange(length) < torch.tensor(lengths).unsqueeze(1)
    visible = F.pad(visible, (num_block_tokens, 0), value=True)
    return visible[:, None, None, :].expand(-1, 1, length, -1)


@pytest.fixture
def merges(monkeypatch):
    """The query shapes of all merges of a run."""
    shapes = []

    def spy(query, *args):
        shapes.append(tuple(query.shape))
        return merged_attention(query, *args)

    monkeypatch.setattr(context_attention, "merged_attention", spy)
    return shapes


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("lengths", [None, [5, 2, 4, 1], [5, 0, 3, 3]], ids=["full", "padded", "empty text"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_values_and_gradients_equal_those_over_copies(dtype, tolerance, lengths, batch_size):
    inputs = random_inputs(dtype, batch_size)
    mask = padding_mask(lengths[-batch_size:]) if lengths else None
    weights = torch.randn(batch_size, 5, 3, 8, dtype=dtype)
    outputs, gradients = [], []
    for attend in (merged_attention, attention_over_copies):
        outputs.append(attend(*inputs, mask, 0.3))
        gradients.append(torch.autograd.grad((outputs[-1] * weights).sum(), inputs))
    torch.testing.assert_close(*outputs, atol=tolerance, rtol=0)
    for merged, expected in zip(*gradients, strict=True):
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(merged, expected, atol=tolerance, rtol=0)


def test_a_mask_may_differ_from_query_to_query():
    inputs = random_inputs(torch.float64)
    mask = F.pad(torch.ones(5, 5, dtype=torch.bool).tril(1), (7, 0), value=True).expand(4, 1, -1, -1)
    outputs = [attend(*inputs, mask, 0.3) for attend in (merged_attention, attention_over_copies)]
    torch.testing.assert_close(*outputs, atol=1e-9, rtol=0)
    gradients = [torch.autograd.grad(output.pow(2).sum(), inputs) for output in outputs]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


def test_the_same_bits_with_and_without_gradients():
    inputs = random_inputs(torch.float32)
    with torch.no_grad():
        expected = merged_attention(*inputs, padding_mask([5, 2, 4, 1]))
    assert torch.equal(merged_attention(*inputs, padding_mask([5, 2, 4, 1])), expected)


def test_large_scores_do_not_overflow():
    inputs = [100 * tensor.detach() for tensor in random_inputs(torch.float32)]
    expected = attention_over_copies(*inputs, None, 1.0)
    torch.testing.assert_close(merged_attention(*inputs, None, 1.0), expected, atol=1e-2, rtol=1e-4)


def test_merging_pays_on_a_cpu_where_many_keys_would_be_copied_for_shorter_texts():
    texts, block = torch.empty(2, 3, 128, 8), torch.empty(1, 3, 128, 8)
    assert is_merging_faster(texts, block)
    assert not is_merging_faster(texts, block[:, :, 1:])
    assert not is_merging_faster(texts[:1], block)
    assert not is_merging_faster(texts.to("meta"), block.to("meta"))


@pytest.mark.parametrize("family", ["nomic_bert", "modernbert", "bert", "distilbert"])
def test_a_model_has_the_gradients_of_copying(make_model, texts, context_documents, monkeypatch, merges, family):
    model = make_model(family, context_attention="prefix", context_size=70).double()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(*texts, *context_documents).embeddings.pow(3).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        monkeypatch.setattr(context_attention, "is_merging_faster", lambda *_: False)
    assert len(merges) == 3  # once a layer, in the first run alone
    assert any(name.startswith("first_stage_model") and grad.abs().max() > 1e-6 for name, grad in gradients[0].items())
    for name, expected in gradients[1].items():
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(gradients[0][name], expected, atol=1e-9 * scale, rtol=0)


@pytest.mark.parametrize("is_training", [True, False])
def test_a_model_gives_the_same_bits_with_and_without_gradients(
    make_model, texts, context_documents, merges, is_training
):
    model = make_model(context_attention="prefix", context_size=70, sequence_dropout_prob=0.3).train(is_training)
    results = []
    for has_gradients in (False, True):
        torch.manual_seed(0)
        with torch.set_grad_enabled(has_gradients):
            results.append((model(*texts, *context_documents).embeddings, torch.get_rng_state()))
    assert len(merges) == 6
    assert results[1][0].requires_grad
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_attention_dropout_is_never_merged(backbone_config, texts, merges):
    # The first pass of gradient caching runs in training mode without gradients, and is replayed with them.
    bert = backbone_config("bert", attention_probs_dropout_prob=0.5)
    config = CDEConfig(first_stage_config=bert, second_stage_config=bert, context_size=70, context_attention="prefix")
    stage = CDEModel(config).train().second_stage_model
    context, results, states = torch.randn(70, 32), [], []
    for seed, has_gradients in ((1, True), (1, False), (2, False)):
        torch.manual_seed(seed)
        with torch.set_grad_enabled(has_gradients):
            results.append(stage(*texts, dataset_embeddings=context).detach())
            states.append(torch.get_rng_state())
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=0)
    assert torch.equal(states[0], states[1])
    assert (results[1] - results[2]).abs().max() > 1e-4
    assert not merges
    stage.eval()(*texts, dataset_embeddings=context)
    assert len(merges) == 3


def test_gradient_checkpointing_gives_the_same_gradients(make_model, texts, context_documents, merges):
    model = make_model(context_attention="prefix", context_size=70).train()
    gradients = []
    for is_checkpointed in (False, True):
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(0)
        model(*texts, *context_documents).embeddings.pow(2).sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert len(merges) == 3 + 6
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("is_cast", [True, False], ids=["cast", "autocast"])
def test_half_precision_trains(make_model, texts, context_documents, merges, is_cast):
    model = make_model(context_attention="prefix", context_size=70)
    expected = model(*texts, *context_documents).embeddings
    model = model.to(torch.bfloat16) if is_cast else model
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not is_cast):
        embeddings = model(*texts, *context_documents).embeddings
    embeddings.float().pow(2).sum().backward()
    assert len(merges) == 6
    assert torch.cosine_similarity(embeddings.float(), expected).min() > 0.98
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
