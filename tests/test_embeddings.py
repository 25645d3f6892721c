"""`CorpusEmbeddings`: lists of floats, and a name and configuration that differ between contexts."""

import asyncio
import inspect
import json

import numpy as np
import pytest

from cde_hf import CorpusEmbeddings, contextualize, set_context


CORPUS = ["The cat sleeps on the sofa.", "A dog barks at the moon.", "Whales live in the sea.", "An owl hunts."]


@pytest.fixture(scope="module")
def model(minilm):
    return contextualize(minilm, CORPUS)


def test_texts_become_lists_of_floats(model):
    embeddings = CorpusEmbeddings(model, batch_size=2)
    documents = embeddings.embed_documents(CORPUS)
    assert type(documents[0][0]) is float
    np.testing.assert_allclose(documents, model.encode_document(CORPUS, normalize_embeddings=True), atol=1e-6)
    assert documents == asyncio.run(embeddings.aembed_documents(CORPUS))
    assert documents == [vector.tolist() for vector in embeddings(CORPUS)]
    query = embeddings.embed_query("zzyzx")
    assert query != embeddings.embed_documents(["zzyzx"])[0]  # a query of unknown words differs
    assert query == asyncio.run(embeddings.aembed_query("zzyzx"))
    assert [query] == [vector.tolist() for vector in embeddings.embed_query(input=["zzyzx"])]
    assert embeddings.default_space() == "cosine"


def test_a_later_change_of_the_context_has_no_effect(minilm):
    model = contextualize(minilm, CORPUS)
    embeddings = CorpusEmbeddings(model)
    before = embeddings.embed_query("the moon")
    set_context(model, CORPUS[:2])
    assert embeddings.embed_query("the moon") == before


def test_name_and_configuration_are_those_of_model_and_context(minilm, model):
    embeddings, equal = CorpusEmbeddings(model), CorpusEmbeddings(contextualize(minilm, CORPUS))
    other = CorpusEmbeddings(contextualize(minilm, CORPUS[:3]))
    assert embeddings.name() == type(embeddings).name() == equal.name() != other.name()
    config = json.loads(json.dumps(embeddings.get_config()))
    assert config == equal.get_config()
    assert config["context"] != other.get_config()["context"]
    assert type(embeddings).build_from_config(other.get_config()) is other
    with pytest.raises(ValueError, match=r"with the context 0123 of the model .*Make them from that model: `Corpus"):
        CorpusEmbeddings.build_from_config(config | {"context": "0123"})


def test_models_without_a_context_are_refused(minilm):
    with pytest.raises(ValueError, match=r"The model has no context, .* Make it contextual with `contextualize\(mod"):
        CorpusEmbeddings(minilm)
    with pytest.raises(TypeError, match="must be a loaded model"):
        CorpusEmbeddings("minilm")


def test_it_has_the_methods_that_chroma_calls(model):
    embeddings = CorpusEmbeddings(model)
    assert list(inspect.signature(type(embeddings).__call__).parameters) == ["self", "input"]
    assert embeddings.is_legacy() is False
    assert embeddings.supported_spaces() == ["cosine"]
