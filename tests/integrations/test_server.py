"""The example of a server, with OpenAI's client."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from cde_hf import ContextualIndex


SERVER = Path(__file__).parents[2] / "examples" / "server.py"
TEXTS = [f"{animal} number {number}" for number in range(50) for animal in ("cat", "dog", "owl", "whale")]
TOKEN = "a-secret-of-this-test"


@pytest.fixture(scope="module")
def folder(model, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    ContextualIndex.build(model, corpus).save(folder / "index")
    return folder


@pytest.fixture(scope="module")
def server(served, model_folder, folder):
    arguments = ["--model", f"minilm@animals={model_folder}", "--index", f"minilm@animals={folder / 'index'}"]
    with served(sys.executable, SERVER, *arguments, path="/health", folder=folder, SERVER_TOKEN=TOKEN) as (port, log):
        yield f"http://127.0.0.1:{port}", log


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server[0]}/v1", api_key=TOKEN, max_retries=0)


@pytest.fixture(scope="module")
def vectors(model):
    return model.encode_document(TEXTS, normalize_embeddings=True)


def embed(client, texts, **options):
    response = client.embeddings.create(model="minilm@animals", input=texts, **options)
    assert [each.index for each in response.data] == list(range(len(response.data)))
    return np.array([each.embedding for each in response.data])


def test_200_concurrent_requests_all_get_their_answer(client, vectors):
    def ask(number):
        kind = "query" if number % 3 else "document"  # equal for texts with words of the corpus
        texts = TEXTS[number] if number % 2 else [TEXTS[number], TEXTS[-number]]
        return embed(client, texts, extra_body={"input_type": kind})

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(ask, range(200)))
    for number, answer in enumerate(answers):
        wanted = vectors[[number]] if number % 2 else vectors[[number, -number]]
        np.testing.assert_allclose(answer, wanted, atol=1e-5)


def test_the_forms_of_openai(client, model, vectors):
    np.testing.assert_allclose(embed(client, TEXTS[0]), vectors[:1], atol=1e-5)  # base64, the client's default
    np.testing.assert_allclose(embed(client, TEXTS[:2], encoding_format="float"), vectors[:2], atol=1e-5)
    token_ids = model.tokenizer(TEXTS[:2], add_special_tokens=False)["input_ids"]
    np.testing.assert_allclose(embed(client, token_ids), vectors[:2], atol=1e-5)
    np.testing.assert_allclose(embed(client, token_ids[0]), vectors[:1], atol=1e-5)
    short = vectors[:2, :100] / np.linalg.norm(vectors[:2, :100], axis=1, keepdims=True)
    np.testing.assert_allclose(embed(client, TEXTS[:2], dimensions=100), short, atol=1e-5)


def test_the_tokens_of_all_texts_are_counted(client, model):
    usage = client.embeddings.create(model="minilm@animals", input=[TEXTS[0], TEXTS[1] * 100]).usage
    counted = model.tokenizer([TEXTS[0], TEXTS[1] * 100], truncation=False)["input_ids"]
    assert usage.prompt_tokens == usage.total_tokens == sum(map(len, counted)) > model.max_seq_length


def test_queries_and_documents_differ(client, model):
    text = "zzyzx"  # unknown to the corpus
    query = embed(client, text, extra_body={"input_type": "query"})
    np.testing.assert_allclose(query, model.encode_query([text], normalize_embeddings=True), atol=1e-5)
    assert np.abs(query - embed(client, text)).max() > 1e-2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "gpt"}, openai.NotFoundError, "There is no model `gpt` for document"),
        ({"dimensions": 641}, openai.BadRequestError, "must be at most 640"),
        ({"input": [10**6]}, openai.BadRequestError, "below 30522"),
        ({"input": [[]]}, openai.UnprocessableEntityError, "at least 1 item"),
        ({"input": " "}, openai.UnprocessableEntityError, "pattern"),
        ({"input": "a" * 40_000}, openai.UnprocessableEntityError, "at most 32768 characters"),
        ({"input": ["a"] * 2049}, openai.UnprocessableEntityError, "at most 2048 items"),
        ({"input": ["a" * 30_000] * 300}, openai.APIStatusError, "413"),
    ],
)
def test_what_is_wrong_is_named(client, options, error, message):
    with pytest.raises(error) as raised:
        client.embeddings.create(**{"model": "minilm@animals", "input": "text", **options})
    assert message in f"{raised.value.status_code} {raised.value.response.text}"


def test_a_token_is_needed_and_never_logged(server):
    url, log = server
    for token in ("another", TOKEN + "x", ""):
        with pytest.raises(openai.AuthenticationError):
            embed(openai.OpenAI(base_url=f"{url}/v1", api_key=token or "none", max_retries=0), "text")
    assert httpx.get(f"{url}/health").status_code == 401
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(f"{url}/health", headers=headers).json() == {"status": "ok", "models": ["minilm@animals"]}
    assert TOKEN not in log.read_text()


def test_an_index_is_searched(server, model, corpus):
    body = {"model": "minilm@animals", "query": "Which animal barks?", "depth": 2}
    answer = httpx.post(f"{server[0]}/search", json=body, headers={"Authorization": f"Bearer {TOKEN}"}).json()
    hits = ContextualIndex.build(model, corpus).search(body["query"], depth=2)
    assert answer["hits"] == [
        {"id": hit.document_id, "score": pytest.approx(hit.score, abs=1e-5), "text": hit.text} for hit in hits
    ]


def test_a_full_queue_says_when_to_come_back(served, model_folder, folder, vectors):
    arguments = ["--model", f"animals={model_folder}", "--queue", "20"]
    with served(sys.executable, SERVER, *arguments, path="/health", folder=folder, SERVER_TOKEN="") as (port, _):
        url = f"http://127.0.0.1:{port}/v1/embeddings"

        def ask(start):
            return httpx.post(url, json={"model": "animals", "input": TEXTS[start : start + 8]}, timeout=60)

        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(ask, range(24)))
        assert httpx.post(url, json={"model": "animals", "input": TEXTS[:21]}).status_code == 413
        again = ask(0)  # the queue is empty again
    assert {answer.status_code for answer in answers} == {200, 429}
    for start, answer in [*enumerate(answers), (0, again)]:
        if answer.status_code == 429:
            assert answer.headers["Retry-After"] == "1"
        else:
            given = [each["embedding"] for each in answer.json()["data"]]
            np.testing.assert_allclose(given, vectors[start : start + 8], atol=1e-5)


def test_it_has_at_most_120_lines_and_listens_on_loopback():
    source = SERVER.read_text()
    assert len(source.splitlines()) <= 120
    assert source.count("host=") == source.count('host="127.0.0.1"') == 1
