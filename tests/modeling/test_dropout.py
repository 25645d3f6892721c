"""Sequence dropout, which happens in training alone."""

import pytest
import torch


@pytest.fixture(params=["joint", "prefix"])
def mode(request):
    return request.param


def contexts_seen(model, texts, context):
    """Context rows that reach the backbone in one training step: `(num_contexts, context_size, hidden_size)`."""
    stage, seen = model.second_stage_model, []
    original = stage._block_embeddings

    def spy(rows):
        seen.append(rows.detach())
        return original(rows)

    stage._block_embeddings = spy
    stage(*texts, dataset_embeddings=context)
    stage._block_embeddings = original
    return seen[0]


def test_dropped_documents_are_the_null_embedding(make_model, texts, mode):
    model = make_model(
        context_size=400, sequence_dropout_prob=0.25, context_attention=mode, context_in_token_space=False
    ).train()
    context = torch.randn(400, 32)
    rows = contexts_seen(model, texts, context)
    is_null = (rows == model.second_stage_model.null_embedding).all(dim=-1)
    is_kept = (rows == context).all(dim=-1)
    assert (is_null ^ is_kept).all()
    assert 0.15 < is_null.float().mean() < 0.35


def test_joint_attention_draws_per_text_and_prefix_attention_once(make_model, texts, mode):
    model = make_model(context_size=100, sequence_dropout_prob=0.5, context_attention=mode).train()
    rows = contexts_seen(model, texts, torch.randn(100, 32))
    assert len(rows) == (4 if mode == "joint" else 1)
    if mode == "joint":
        assert not torch.equal(rows[0], rows[1])


def test_another_step_is_another_draw(make_model, texts, mode):
    model = make_model(context_size=100, sequence_dropout_prob=0.5, context_attention=mode).train()
    context = torch.randn(100, 32)
    assert not torch.equal(contexts_seen(model, texts, context), contexts_seen(model, texts, context))


def test_the_same_random_state_is_the_same_draw(make_model, texts, mode):
    model = make_model(sequence_dropout_prob=0.5, context_attention=mode).train()
    context = torch.randn(6, 32)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(model.second_stage_model(*texts, dataset_embeddings=context))
    torch.testing.assert_close(*results, atol=0, rtol=0)


def test_evaluation_drops_nothing(make_model, texts, mode):
    model = make_model(sequence_dropout_prob=1.0, context_attention=mode, context_in_token_space=False)
    context = torch.randn(6, 32)
    assert torch.equal(contexts_seen(model, texts, context)[0], context)
