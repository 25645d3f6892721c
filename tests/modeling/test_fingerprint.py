"""The short hashes of weights and tokenizers, which tie a context to what reads it."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from cde_hf.modeling import context as context_module
from cde_hf.modeling.context import Context, fingerprint
from cde_hf.modeling.frequency_pooling import tokenizer_fingerprint


@torch.no_grad()
def test_a_change_of_any_parameter_changes_the_name(make_model):
    stage = make_model().second_stage_model
    name, num_parameters = fingerprint(stage), 0
    for parameter in stage.parameters():
        before = parameter.clone()
        parameter.data.add_(1)  # which no version counter of the parameter notices
        assert fingerprint(stage) != name
        parameter.data.copy_(before)
        assert fingerprint(stage) == name
        num_parameters += 1
    assert num_parameters > 30


def test_another_module_in_the_place_of_one_changes_the_name(make_model):
    stage = make_model().second_stage_model
    name = fingerprint(stage)
    stage.output_projection[0] = torch.nn.Linear(32, 32)
    assert fingerprint(stage) != name


def test_a_cast_keeps_the_name_also_if_it_is_partial(make_model):
    stage = make_model().second_stage_model.to(torch.bfloat16)
    name = fingerprint(stage)
    stage.output_projection.float()
    assert fingerprint(stage) == name


@torch.no_grad()
def test_a_changed_row_of_a_large_matrix_changes_the_name():
    model = torch.nn.Sequential(torch.nn.Embedding(5000, 64))
    name = fingerprint(model)
    model[0].weight[4321, 7] += 1  # far from any probed value
    assert fingerprint(model) != name


def test_any_module_has_a_name_unless_it_has_no_weights():
    linear = torch.nn.Linear(4, 3)
    linear.weight = torch.nn.Parameter(torch.randn(4, 3).T)  # not contiguous
    assert fingerprint(linear)
    with pytest.raises(ValueError, match="has no weights in PyTorch"):
        fingerprint(torch.nn.Identity())


def test_the_first_stage_is_not_part_of_the_name(make_model):
    model = make_model()
    name = fingerprint(model)
    torch.nn.init.normal_(model.first_stage_model.output_projection[0].weight)
    assert fingerprint(model) == name
    torch.nn.init.normal_(model.second_stage_model.output_projection[0].weight)
    assert fingerprint(model) != name


def test_nothing_is_read_where_there_is_no_name(make_model, texts, context_documents, monkeypatch):
    # A training step makes its context anew, and reading weights would stall an accelerator for every mini-batch.
    def fail(module):
        raise RuntimeError("The weights were read.")

    monkeypatch.setattr(context_module, "_probe", fail)
    model = make_model(context_attention="prefix").train()
    context = model(dataset_embeddings=torch.randn(6, 32)).context
    model(*texts, context=context)
    model(*texts, context=Context())


def test_the_name_of_a_tokenizer_is_its_vocabulary_and_not_its_state(minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    name = tokenizer_fingerprint(tokenizer)
    tokenizer(["a", "b c d e f"], padding=True, truncation=True, max_length=4)
    assert tokenizer_fingerprint(tokenizer) == name
    tokenizer.add_tokens(["neologism"])
    assert tokenizer_fingerprint(tokenizer) != name


def test_the_vocabulary_of_a_tokenizer_is_parsed_once(minilm, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    name = tokenizer_fingerprint(tokenizer)
    monkeypatch.setattr(json, "loads", None)
    assert tokenizer_fingerprint(tokenizer) == name
