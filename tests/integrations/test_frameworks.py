"""`CorpusEmbeddings` in LangChain and in Chroma with a server of its own, and PostgreSQL with pgvector."""

import asyncio
import gc
import sys
from pathlib import Path

import chromadb
import pytest
from langchain_core.vectorstores import InMemoryVectorStore

from cde_hf import CorpusEmbeddings, contextualize


EXAMPLES = Path(__file__).parents[2] / "examples"
CHROMA = Path(sys.executable).with_name("chroma")
QUESTION = "Which animal barks?"


def parse(output):
    return [(float(score), text) for score, text in (line.split("  ", 1) for line in output.splitlines())]


def expected(model, corpus, depth=3):
    scores = model.similarity(model.encode_query([QUESTION]), model.encode_document(list(corpus.values())))[0]
    ranked = sorted(zip(scores.tolist(), corpus.values(), strict=True), reverse=True)[:depth]
    return [(pytest.approx(score, abs=1e-3), text) for score, text in ranked]


@pytest.mark.parametrize("name", ["langchain_retriever.py", "chroma_collection.py"])
def test_an_example_has_fewer_than_40_lines(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 40


def test_langchain_searches(model, corpus, corpus_file, run):
    output = run(EXAMPLES / "langchain_retriever.py", "minilm", corpus_file, QUESTION, folder=corpus_file.parent)
    assert parse(output) == expected(model, corpus)


def test_a_retriever_of_langchain_with_and_without_async(model, corpus):
    store = InMemoryVectorStore.from_texts(list(corpus.values()), CorpusEmbeddings(model))
    retriever = store.as_retriever(search_kwargs={"k": 1})
    for documents in (retriever.invoke(QUESTION), asyncio.run(retriever.ainvoke(QUESTION))):
        assert [document.page_content for document in documents] == [corpus["dog"]]


@pytest.fixture(scope="module")
def chroma(served, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chroma")
    command = [CHROMA, "run", "--path", folder / "data", "--host", "127.0.0.1"]
    with served(*command, path="/api/v2/heartbeat", folder=folder) as (port, _):
        yield port


def test_the_example_searches_chroma(model, corpus, corpus_file, chroma, run):
    command = [EXAMPLES / "chroma_collection.py", "minilm", corpus_file, QUESTION, "--port", chroma]
    assert parse(run(*command, folder=corpus_file.parent)) == expected(model, corpus)
    assert parse(run(*command, folder=corpus_file.parent)) == expected(model, corpus)
    corpus_file.write_text("Another text.\nOne more.\nAnd a third one.")
    message = run(*command, folder=corpus_file.parent, fails=True)
    assert "Embedding function conflict: new: cde_hf-" in message


def test_a_collection_refuses_another_context(model, corpus, chroma):
    client = chromadb.HttpClient("127.0.0.1", chroma)
    embeddings = CorpusEmbeddings(model)
    collection = client.create_collection("animals", embedding_function=embeddings)
    collection.add(ids=list(corpus), documents=list(corpus.values()))
    assert collection.configuration["embedding_function"] is embeddings
    assert collection.configuration["hnsw"]["space"] == "cosine"
    stored = client.get_collection("animals")._model.configuration_json["embedding_function"]["config"]
    assert stored["context"] == embeddings.get_config()["context"]
    found = client.get_collection("animals", embedding_function=embeddings).query(query_texts=[QUESTION], n_results=1)
    assert found["ids"] == [["dog"]]
    other = CorpusEmbeddings(contextualize(model, list(corpus.values())[:3]))
    for open_collection in (client.get_collection, client.get_or_create_collection):
        with pytest.raises(ValueError, match="Embedding function conflict: new: cde_hf-"):
            open_collection("animals", embedding_function=other)
    del embeddings, collection
    gc.collect()  # with what other tests made
    with pytest.raises(ValueError, match=r"with the context \w+ of the model \w+, but this process has no such"):
        client.get_collection("animals").query(query_texts=[QUESTION])


def test_a_collection_is_modified_with_its_own_embeddings_only(model, corpus, chroma):
    client = chromadb.HttpClient("127.0.0.1", chroma)
    embeddings = CorpusEmbeddings(model)
    other = CorpusEmbeddings(contextualize(model, list(corpus.values())[:3]))
    collection = client.create_collection("modified", embedding_function=embeddings)
    collection.modify(configuration={"embedding_function": embeddings})
    assert client.get_collection("modified", embedding_function=embeddings).count() == 0
    # Chroma's client compares them after the server has stored the others.
    with pytest.raises(ValueError, match="incompatible types"):
        collection.modify(configuration={"embedding_function": other})


def test_postgresql_names_the_context(model_folder, model, corpus, corpus_file, tmp_path, run):
    run("-m", "cde_hf.cli", "encode", model_folder, corpus_file, "encoded", "--trust-remote-code", folder=tmp_path)
    command = [EXAMPLES / "pgvector_search.py", model_folder, "encoded", QUESTION]
    for _ in range(2):  # the second time, the table is there
        rows = [line.split("  ") for line in run(*command, folder=tmp_path).splitlines()]
        assert [(float(score), text) for score, _, text in rows] == expected(model, corpus)
    contextualize(model, ["Another text.", "One more."]).save(str(tmp_path / "other"))
    command[1] = "other"
    assert "has vectors of another model or context" in run(*command, folder=tmp_path, fails=True)
