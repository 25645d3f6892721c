"""The index on a server: the real client of Qdrant against a server on this machine, which answers by local mode."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from cde_hf import ContextualIndex, QdrantIndex, contextualize


qdrant_client = pytest.importorskip("qdrant_client")
models = qdrant_client.models

TEXTS = ["Water boils at a hundred degrees.", "Iron rusts in wet air.", "Gold does not rust.", "Ice swims on water."]
CORPUS = dict(zip(["water", "iron", "gold", "ice"], TEXTS, strict=True))
QUERIES = ["What gets hot?", "a precious metal", "something cold"]


class QdrantServer(ThreadingHTTPServer):
    """
    The calls that came, and what to answer: `failure` is a status, `"close"`, or nothing.

    The bodies go through the models of Qdrant's interface, so that a call that it does not know fails. A failure
    begins after `num_good` calls.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.client = qdrant_client.QdrantClient(":memory:")
        self.lock = threading.Lock()
        self.calls = []
        self.failure, self.num_good = None, 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, method, parts, body):
        name = parts[1]
        match (method, *parts[2:]):
            case ("GET", "exists"):
                return {"exists": self.client.collection_exists(name)}
            case ("PUT",):
                request = models.CreateCollection(**body)
                return self.client.create_collection(
                    name, request.vectors, sparse_vectors_config=request.sparse_vectors
                )
            case ("DELETE",):
                return self.client.delete_collection(name)
            case ("PUT", "points"):
                return self.client.upsert(name, models.PointsList(**body).points).model_dump(mode="json")
            case ("POST", "points"):
                request = models.PointRequest(**body)
                found = self.client.retrieve(name, request.ids, with_payload=request.with_payload)
                return [record.model_dump(mode="json") for record in found]
            case ("POST", "points", "query"):
                request = models.QueryRequest(**body)
                found = self.client.query_points(
                    name,
                    query=request.query,
                    prefetch=request.prefetch,
                    limit=request.limit,
                    with_payload=request.with_payload,
                )
                return found.model_dump(mode="json")
            case ("POST", "points", "count"):
                return {"count": self.client.count(name, exact=models.CountRequest(**body).exact).count}
            case ("POST", "points", "delete"):
                return self.client.delete(name, models.PointIdsList(**body)).model_dump(mode="json")
        raise ValueError(f"{method} {parts}")


class Handler(BaseHTTPRequestHandler):
    def handle_call(self):
        server, url = self.server, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if url.path == "/":  # the client asks for the version from a thread of its own
            return self.reply(200, {"title": "qdrant - vector search engine", "version": "1.20.0"})
        parts = url.path.strip("/").split("/")
        with server.lock:
            server.calls.append((self.command, url.path, url.query))
            if server.failure is not None and len(server.calls) > server.num_good:
                if server.failure == "close":
                    self.close_connection = True
                    return self.connection.close()
                return self.reply(server.failure, {"status": {"error": "not today"}})
            result = server.answer(self.command, parts, json.loads(body) if body else {})
        return self.reply(200, {"result": result, "status": "ok", "time": 0.0})

    do_GET = do_PUT = do_POST = do_DELETE = handle_call  # noqa: N815

    def reply(self, status, answer):
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = QdrantServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def index(minilm):
    return ContextualIndex.build(contextualize(minilm, None), CORPUS)


def hits_of(index):
    return [index.search(query, depth=3) for query in QUERIES]


def test_a_server_gives_what_local_mode_gives(server, index, minilm):
    local = QdrantIndex.upload(index, qdrant_client.QdrantClient(":memory:"), "matter", batch_size=3)
    remote = QdrantIndex.upload(index, server.url, "matter", batch_size=3)
    assert len(remote) == len(local) == 4 and hits_of(remote) == hits_of(local)
    for each in (local, remote):
        each.add({"lead": "Lead is a heavy metal."})
        with pytest.raises(ValueError, match="1 of 1 documents have ids that are in the collection, such as 'gold'"):
            each.add({"gold": "text"})
        each.delete(["iron"])
    assert len(remote) == len(local) == 4 and hits_of(remote) == hits_of(local)
    assert {hit.document_id for hits in hits_of(remote) for hit in hits} <= {"water", "gold", "ice", "lead"}
    opened = QdrantIndex.open(server.url, "matter", contextualize(minilm, ["Another context."]))
    assert opened.origin == index.origin and hits_of(opened) == hits_of(local)
    with pytest.raises(ValueError, match="`matter` already holds an index"):
        QdrantIndex.upload(index, server.url, "matter")


def test_the_calls_are_those_of_the_rest_interface(server, index):
    remote = QdrantIndex.upload(index, server.url, "matter", batch_size=3)
    remote.search(QUERIES[0])
    remote.delete(["iron"])
    assert server.calls == [
        ("GET", "/collections/matter-context/exists", ""),
        ("GET", "/collections/matter/exists", ""),
        ("GET", "/collections/matter-context/exists", ""),
        ("PUT", "/collections/matter-context", ""),
        ("PUT", "/collections/matter-context/points", "wait=true"),
        ("PUT", "/collections/matter", ""),
        ("PUT", "/collections/matter/points", "wait=true"),
        ("PUT", "/collections/matter/points", "wait=true"),
        ("GET", "/collections/matter-context/exists", ""),
        ("PUT", "/collections/matter-context/points", "wait=true"),
        ("POST", "/collections/matter/points/query", ""),
        ("POST", "/collections/matter/points", ""),
        ("POST", "/collections/matter/points/delete", "wait=true"),
    ]


FAILURES = [
    (401, PermissionError, r"answered 401 \(Unauthorized\): .*not today.*Give `QdrantClient\(url=…, api_key=…\)`"),
    (500, ConnectionError, r"answered 500 \(Internal Server Error\): .*not today.*check the server's log"),
    ("close", ConnectionError, "gave no readable answer .*Check that its server runs at this URL"),
]


@pytest.mark.parametrize(("failure", "error", "message"), FAILURES)
def test_a_failing_server_is_named_by_every_call(server, index, minilm, failure, error, message):
    remote = QdrantIndex.upload(index, server.url, "matter")
    server.failure = failure
    for call in (
        lambda: remote.search(QUERIES[0]),
        lambda: remote.add({"tin": "Tin melts soon."}),
        lambda: remote.delete(["gold"]),
        lambda: len(remote),
        lambda: QdrantIndex.upload(index, server.url, "others"),
        lambda: QdrantIndex.open(server.url, "matter", minilm),
    ):
        with pytest.raises(error, match=message):
            call()
    server.failure = None
    assert len(remote) == 4


@pytest.mark.parametrize(("failure", "error", "message"), FAILURES)
def test_an_upload_that_failed_begins_again(server, index, minilm, failure, error, message):
    server.failure, server.num_good = failure, 7  # the first documents are there, the last ones not
    with pytest.raises(error, match=message):
        QdrantIndex.upload(index, server.url, "matter", batch_size=3)
    server.failure = None
    with pytest.raises(ValueError, match="found an incomplete upload"):
        QdrantIndex.open(server.url, "matter", minilm)
    assert server.client.count("matter").count == 3
    uploaded = QdrantIndex.upload(index, server.url, "matter", batch_size=3)
    assert len(uploaded) == 4
    assert [hit.document_id for hit in uploaded.search(QUERIES[1])] == [
        hit.document_id for hit in index.search(QUERIES[1])
    ]


def test_the_scheme_of_a_url_may_have_capital_letters(server, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(QdrantIndex.upload(index, server.url.replace("http", "HTTP"), "matter")) == 4
    assert server.client.count("matter").count == 4 and not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_named(index):
    with pytest.raises(ConnectionError, match="gave no readable answer .*Connection refused"):
        QdrantIndex.upload(index, "http://127.0.0.1:9", "matter")
