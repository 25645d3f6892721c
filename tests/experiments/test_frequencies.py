"""A model that takes from a context its token frequencies alone."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from cde_hf import ContextualModelEmbedder, get_context, save_checkpoint
from experiments.frequencies import FrequencyEmbedder
from experiments.runner.scoring import FREQUENCY_FIELDS, load_sentence_transformer
from experiments.runner.training import load_model


OWN = ["The cat sleeps.", "The cat and the owl.", "A cat sleeps at night.", "Owls hunt at night."]
OTHERS = ["Two coins for a cow.", "The hen was sold.", "Four young ones.", "A bear has nine coins."]


@pytest.fixture
def model(workspace, config, tmp_path):
    encoder = workspace.load_encoder(config)
    save_checkpoint(load_model(config, encoder), AutoTokenizer.from_pretrained(encoder), tmp_path / "start")
    return load_sentence_transformer(tmp_path / "start", 16, **FREQUENCY_FIELDS)


def embed(embedder, documents):
    embedder.set_context(documents)
    return embedder.embed_documents(["Where does the cat sleep?", "The bear hunts the hen."])


def test_vectors_and_frequencies_of_the_same_documents_are_their_context(model):
    expected = embed(ContextualModelEmbedder(model, "whole"), OWN)
    np.testing.assert_allclose(
        embed(FrequencyEmbedder(model, "parts", vector_documents=OWN), OWN), expected, atol=1e-6
    )


def test_vectors_stay_when_the_frequencies_change(model):
    context = ContextualModelEmbedder(model, "whole")
    embedder = FrequencyEmbedder(model, "parts", vector_documents=OTHERS)
    context.set_context(OWN)
    frequencies = get_context(context.model).token_frequencies
    context.set_context(OTHERS)
    keys = get_context(context.model).keys_values[0][0]
    embedder.set_context(OWN)
    block = get_context(embedder.model)
    assert block.token_frequencies.equal(frequencies) and block.keys_values[0][0].equal(keys)
    assert not np.allclose(embed(embedder, OWN), embed(context, OTHERS), atol=1e-4)


def test_without_vectors_the_frequencies_count(model):
    embedder = FrequencyEmbedder(model, "parts")
    own, others, none = (embed(embedder, documents) for documents in (OWN, OTHERS, None))
    assert not np.allclose(own, others, atol=1e-4)
    np.testing.assert_allclose(none, embed(ContextualModelEmbedder(model, "whole"), None), atol=1e-6)
    assert not np.allclose(own, none, atol=1e-4)
