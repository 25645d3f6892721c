"""The short names of weights, which every encoded text has checked."""

import pytest
import torch

from cde_hf.modeling import fingerprint as fingerprint_module
from cde_hf.modeling.fingerprint import fingerprint, is_named


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


def test_nothing_is_read_where_there_is_no_name(make_model, texts, monkeypatch):
    # A training step makes its blocks anew, and reading weights would stall an accelerator for every mini-batch.
    def fail(module):
        raise RuntimeError("The weights were read.")

    monkeypatch.setattr(fingerprint_module, "_probe", fail)
    stage = make_model(context_attention="prefix").second_stage_model
    stage(*texts, context_block=stage.encode_block())
    assert is_named(stage, None)
    with pytest.raises(RuntimeError, match="The weights were read"):
        is_named(stage, "0123456789abcdef")
