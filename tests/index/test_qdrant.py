"""The index in Qdrant's embedded local mode: the same documents in the same order as in FAISS."""

import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cde_hf import ContextualIndex, QdrantIndex, contextualize
from cde_hf.vectors import vector_origin


qdrant_client = pytest.importorskip("qdrant_client")

CORPUS = {
    "cat": "The cat sleeps on the sofa.",
    "dog": "The dog barks at the moon.",
    "owl": "The owl hunts by night.",
    "whale": "The whale sings in the deep sea.",
}
QUERIES = ["Who makes noise?", "sofa", "a bird"]


@pytest.fixture
def index(minilm):
    return ContextualIndex.build(contextualize(minilm, None), CORPUS)


def hits_of(index):
    return [[(hit.document_id, hit.text) for hit in index.search(query)] for query in QUERIES]


def test_it_finds_what_the_index_finds_and_survives_the_disk(index, minilm, tmp_path):
    uploaded = QdrantIndex.upload(index, tmp_path / "qdrant", "animals", batch_size=3)
    assert len(uploaded) == 4 and hits_of(uploaded) == hits_of(index)
    uploaded.client.close()
    opened = QdrantIndex.open(tmp_path / "qdrant", "animals", contextualize(minilm, ["Another context."]))
    assert opened.origin == index.origin and hits_of(opened) == hits_of(index)
    scores = [[hit.score for hit in each.search(QUERIES[0])] for each in (opened, index)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


def test_documents_are_added_and_deleted(index):
    client = qdrant_client.QdrantClient(":memory:")
    uploaded = QdrantIndex.upload(index, client, "animals")
    uploaded.add({"wolf": "The wolf howls."})
    assert uploaded.search("howling wolf", depth=1)[0].document_id == "wolf"
    with pytest.raises(ValueError, match="1 of 2 documents have ids that are in the collection, such as 'cat'"):
        uploaded.add({"cat": "text", "hen": "text"})
    with pytest.raises(ValueError, match="`depth` must be an integer of at least 1, got 2.0"):
        uploaded.search("cow", depth=2.0)
    with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1, got 0"):
        uploaded.add({"new": "text"}, batch_size=0)
    with pytest.raises(TypeError, match=r"must be a list of ids, got one. Put it in a list: `\[document_id\]`"):
        uploaded.delete("wolf")
    with pytest.raises(KeyError, match=r"1 of 2 documents are not in the collection, such as \['yak'\]. Nothing was"):
        uploaded.delete(["wolf", "yak"])
    assert len(uploaded) == 5
    uploaded.delete(["wolf"])
    assert len(uploaded) == 4 and hits_of(uploaded) == hits_of(index)


@pytest.mark.parametrize("contextual", [False, True])
def test_hybrid_search_gives_the_scores_of_the_index(contextual, minilm, monkeypatch):
    corpus = {
        f"{name} {number}": f"The {name} number {number} sleeps." + " It barks." * (number % 3)
        for name in ("cat", "dog", "owl")
        for number in range(20)
    }
    model = contextualize(minilm, None) if contextual else minilm
    index = ContextualIndex.build(model, corpus | {"empty": ""})
    monkeypatch.setattr("cde_hf.index.qdrant._HYBRID_CANDIDATES", 100)
    uploaded = QdrantIndex.upload(index, qdrant_client.QdrantClient(":memory:"), "animals")
    for query in ("Does the cat number 7 bark?", "owls 13", "zebra", ""):
        for hybrid in (None, True, False):
            mine = {hit.document_id: hit.score for hit in uploaded.search(query or " ", depth=61, hybrid=hybrid)}
            other = {hit.document_id: hit.score for hit in index.search(query or " ", depth=61, hybrid=hybrid)}
            assert mine == pytest.approx(other, abs=2e-5)
    near = {hit.document_id: hit.score for hit in index.search("cat number 7", depth=61, hybrid=False)}
    assert max(hit.score - near[hit.document_id] for hit in uploaded.search("cat number 7", depth=1)) > 0.01
    uploaded.add({"cow": "The cow number 7 sleeps."})
    uploaded.delete(["dog 7"])
    assert uploaded.search("cow", depth=1)[0].document_id == "cow"


def test_vectors_without_texts_are_searched_by_vectors_alone(minilm):
    vectors = minilm.encode_document(list(CORPUS.values()), normalize_embeddings=True)
    index = ContextualIndex.from_vectors(minilm, list(CORPUS), vectors, origin=vector_origin(minilm))
    client = qdrant_client.QdrantClient(":memory:")
    QdrantIndex.upload(index, client, "animals")
    opened = QdrantIndex.open(client, "animals", minilm)
    assert hits_of(opened) == hits_of(index)
    with pytest.raises(ValueError, match="needs the texts of the documents, but this index has vectors alone"):
        opened.search(QUERIES[0], hybrid=True)


def test_what_an_interrupted_upload_left_is_not_in_the_next_index(index, minilm, monkeypatch):
    client = qdrant_client.QdrantClient(":memory:")
    other = ContextualIndex.build(minilm, {f"old {number}": f"The cat number {number}." for number in range(5)})

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cde_hf.index.qdrant._encode_context", stop)
        with pytest.raises(KeyboardInterrupt):
            QdrantIndex.upload(other, client, "animals")
    assert client.count("animals").count == 5
    with pytest.raises(ValueError, match="found an incomplete upload"):
        QdrantIndex.open(client, "animals", minilm)
    uploaded = QdrantIndex.upload(index, client, "animals")
    assert len(uploaded) == 4 and hits_of(uploaded) == hits_of(index)


@pytest.mark.parametrize(
    ("location", "received"),
    [
        ("grpc://user:secret@server:6334", "a URL with the scheme `grpc`"),
        ("localhost:6333", "a host and a port"),
        ("user:secret@server:6333/", "a host and a port"),
    ],
)
def test_a_server_is_not_taken_for_a_folder(index, location, received, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: QdrantIndex.upload(index, location, "animals"),
        lambda: QdrantIndex.open(location, "animals", index.model),
    ):
        with pytest.raises(ValueError, match="must be a folder, or the URL of a server") as error:
            use()
        assert received in str(error.value) and "secret" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_unfinished_foreign_and_occupied_collections_are_refused(index, minilm):
    client = qdrant_client.QdrantClient(":memory:")
    with pytest.raises(ValueError, match="found no upload of this name"):
        QdrantIndex.open(client, "animals", minilm)
    config = qdrant_client.models.VectorParams(size=640, distance=qdrant_client.models.Distance.COSINE)
    client.create_collection("others", vectors_config=config)
    with pytest.raises(ValueError, match="`others` exists and was not made by an upload. Delete it, or choose"):
        QdrantIndex.upload(index, client, "others")
    client.create_collection("others-context", vectors_config=config)
    with pytest.raises(ValueError, match="`others` exists and was not made by an upload. Delete it, or choose"):
        QdrantIndex.upload(index, client, "others")
    assert len(QdrantIndex.upload(index, client, "animals")) == 4
    with pytest.raises(ValueError, match="`animals` already holds an index"):
        QdrantIndex.upload(index, client, "animals")
    other = SentenceTransformer(modules=list(minilm.children()), device="cpu")
    other.prompts["query"] = "query: "
    with pytest.raises(ValueError, match="made with other settings: query_prompt"):
        QdrantIndex.open(client, "animals", other)
    tiny = SentenceTransformer(modules=[torch.nn.Linear(3, 3)], device="cpu")
    with pytest.raises(ValueError, match="was made with the model .* but this one has other weights"):
        QdrantIndex.open(client, "animals", tiny)


def test_without_the_package_the_extra_is_named(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(ImportError, match=r"pip install 'cde-hf\[qdrant\]'"):
        QdrantIndex.upload(index, "folder", "animals")
