"""Models of joint attention run in prefix attention."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.joint_as_prefix import as_prefix
from experiments.runner.scoring import load_system
from experiments.runner.training import train_run


@pytest.mark.parametrize("layers", [1, 2])
def test_joint_weights_run_in_prefix_attention(workspace, config, layers):
    folder = train_run(workspace, replace(config, architecture="joint", layers=layers))
    before = (folder / "config.json").read_text()
    other = as_prefix(folder, workspace.runs / "joint_as_prefix" / folder.name)
    assert as_prefix(folder, other) == other
    assert (folder / "config.json").read_text() == before
    assert (folder / "model.safetensors").samefile(other / "model.safetensors")
    vectors = []
    for each in (folder, other):
        system = load_system(each, "contextual", 16)
        assert system.model[0].model.config.context_attention == ("joint" if each == folder else "prefix")
        system.set_context(["A cat sleeps.", "An owl flies."])
        vectors.append(system.embed_documents(["The dog barks."]))
    # Before the first layer no context token has seen the text, so that with one layer all is the same.
    assert np.allclose(*vectors, atol=1e-5) == (layers == 1)
