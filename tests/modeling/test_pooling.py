"""Weights of the text tokens, and context-frequency pooling in the model."""

import math

import pytest
import torch

from cde_hf import CDEConfig, CDEModel
from cde_hf.modeling.frequency_pooling import FrequencyPooling
from cde_hf.modeling.pooling import count_token_frequencies, pooling_weights


IDS = torch.tensor([[1, 5, 9, 7, 9, 2], [1, 6, 8, 2, 0, 0], [9, 6, 8, 2, 0, 0]])
MASK = (IDS > 0).long()


def test_the_mean_weighs_all_tokens_but_padding():
    torch.testing.assert_close(pooling_weights(IDS, MASK), MASK.float())


def test_the_instruction_weighs_nothing():
    weights = pooling_weights(IDS, MASK, instruction_end_id=9)
    assert weights.tolist() == [[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]]


def test_a_token_at_the_scale_weighs_one_half():
    frequencies = torch.zeros(10)
    frequencies[5], frequencies[7] = 0.2, 0.6
    weights = pooling_weights(IDS, MASK, token_frequencies=frequencies, frequency_scale=0.2)
    torch.testing.assert_close(weights[0], torch.tensor([1, 0.5, 1, 0.25, 1, 1]))


def test_frequencies_count_documents_and_not_occurrences():
    frequencies = count_token_frequencies(IDS, MASK, vocab_size=12)
    expected = [sum(token in row[mask.bool()] for row, mask in zip(IDS, MASK, strict=True)) / 3 for token in range(12)]
    torch.testing.assert_close(frequencies, torch.tensor(expected))


def test_a_token_outside_of_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="token id 9, but the vocabulary has 9 tokens"):
        count_token_frequencies(IDS, MASK, vocab_size=9)


@pytest.fixture(params=["joint", "prefix"])
def models(make_model, request):
    """A model with context-frequency pooling and one with the same weights and the plain mean."""
    fields = {"context_attention": request.param, "frequency_scale": 0.3}
    frequency_model = make_model(pooling="context_frequency", **fields)
    mean_model = make_model(pooling="mean", **fields)
    mean_model.load_state_dict(frequency_model.state_dict())
    return frequency_model, mean_model


def test_the_context_sets_the_weights(models, texts, context_documents):
    frequency_model, mean_model = models
    hidden = []
    backbone = frequency_model.second_stage_model.backbone
    backbone.register_forward_hook(lambda module, inputs, output: hidden.append(output.last_hidden_state))
    embeddings = frequency_model.encode_texts(*texts, context=frequency_model.encode_context(*context_documents))
    frequencies = count_token_frequencies(*context_documents, vocab_size=100)
    weights = texts[1] * 0.3 / (0.3 + frequencies[texts[0]])
    text_hidden = hidden[-1][:, -17:]
    pooled = (text_hidden * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True)
    expected = frequency_model.second_stage_model.output_projection(pooled)
    torch.testing.assert_close(embeddings, expected, atol=1e-5, rtol=0)
    means = mean_model.encode_texts(*texts, context=mean_model.encode_context(*context_documents))
    assert (embeddings - means).abs().max() > 1e-3


def test_forward_counts_the_frequencies_of_its_context(models, texts, context_documents):
    model = models[0]
    expected = model.encode_texts(*texts, context=model.encode_context(*context_documents))
    torch.testing.assert_close(model(*texts, *context_documents).embeddings, expected, atol=1e-5, rtol=0)


def test_bare_vectors_and_no_context_pool_by_the_mean(models, texts):
    frequency_model, mean_model = models
    for context in (None, torch.randn(6, 32)):
        embeddings = frequency_model.second_stage_model(*texts, dataset_embeddings=context)
        expected = mean_model.second_stage_model(*texts, dataset_embeddings=context)
        torch.testing.assert_close(embeddings, expected, atol=0, rtol=0)


def test_a_model_is_trained_with_the_mean_and_pools_by_frequency_at_inference(models, texts, context_documents):
    in_training, at_inference = [], []
    for model in models:
        model.config.sequence_dropout_prob = 0.0
        at_inference.append(model(*texts, *context_documents).embeddings)
        in_training.append(model.train()(*texts, *context_documents).embeddings)
    torch.testing.assert_close(in_training[0], in_training[1], atol=0, rtol=0)
    assert (at_inference[0] - at_inference[1]).abs().max() > 1e-3


def test_the_pooling_can_be_changed_when_a_checkpoint_is_loaded(models, texts, context_documents, tmp_path):
    frequency_model, mean_model = models
    mean_model.save_pretrained(tmp_path)
    loaded = CDEModel.from_pretrained(tmp_path, pooling="context_frequency")
    expected = frequency_model(*texts, *context_documents).embeddings
    torch.testing.assert_close(loaded(*texts, *context_documents).embeddings, expected, atol=1e-5, rtol=0)


def test_an_infinite_scale_is_the_mean(models, texts, context_documents):
    frequency_model, mean_model = models
    expected = mean_model.encode_texts(*texts, context=mean_model.encode_context(*context_documents))
    frequency_model.config.frequency_scale = math.inf
    context = frequency_model.encode_context(*context_documents)
    torch.testing.assert_close(frequency_model.encode_texts(*texts, context=context), expected, atol=0, rtol=0)


def test_the_scale_has_one_default():
    frequencies = torch.full((10,), 0.2)
    torch.testing.assert_close(pooling_weights(IDS, MASK, token_frequencies=frequencies), MASK / 2)
    assert CDEConfig().frequency_scale == FrequencyPooling(8).frequency_scale == 0.2
