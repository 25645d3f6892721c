"""The index in Qdrant's embedded local mode: the same documents in the same order as in FAISS."""

import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cde_hf import ContextualIndex, QdrantIndex, contextualize


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
    uploaded.delete(["wolf"])
    assert len(uploaded) == 4 and hits_of(uploaded) == hits_of(index)


def test_unfinished_foreign_and_occupied_collections_are_refused(index, minilm):
    client = qdrant_client.QdrantClient(":memory:")
    with pytest.raises(ValueError, match="found no such collection"):
        QdrantIndex.open(client, "animals", minilm)
    config = qdrant_client.models.VectorParams(size=640, distance=qdrant_client.models.Distance.COSINE)
    client.create_collection("animals", vectors_config=config)
    with pytest.raises(ValueError, match="found an incomplete upload"):
        QdrantIndex.open(client, "animals", minilm)
    assert len(QdrantIndex.upload(index, client, "animals")) == 4
    with pytest.raises(ValueError, match="`animals` already holds an index"):
        QdrantIndex.upload(index, client, "animals")
    other = SentenceTransformer(modules=list(minilm.children()), device="cpu")
    other.prompts["query"] = "query: "
    with pytest.raises(ValueError, match="made with other settings: query_prompt"):
        QdrantIndex.open(client, "animals", other)
    tiny = SentenceTransformer(modules=[torch.nn.Linear(3, 3)], device="cpu")
    with pytest.raises(ValueError, match="was made with another model"):
        QdrantIndex.open(client, "animals", tiny)


def test_without_the_package_the_extra_is_named(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(ImportError, match=r"pip install 'cde-hf\[qdrant\]'"):
        QdrantIndex.upload(index, "folder", "animals")
