"""
An index in Qdrant: the same vectors, documents and context, in a folder or on a server.

A collection holds the documents: their dense vectors, and the terms of their texts as sparse vectors. A second
collection, whose name ends in `-context`, holds one point with the origin of the vectors, the context and BM25's
statistics. The point is made first and filled last, so an empty one marks an incomplete upload.
"""

import base64
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..contextual_models import get_context
from ..data import Corpus, check_counts, ids_and_texts
from ..evaluation.bm25 import TermStatistics, query_terms
from ..evaluation.hybrid import lexical_scale
from ..modeling import Context
from ..modeling.term_vectors import count_terms, saturate
from ..vectors import SentenceTransformerEmbedder, VectorOrigin, vector_origin
from .contextual_index import ContextualIndex
from .state import SearchHit
from .vectors import NO_TEXTS, model_of_index, refuse_one_id


if TYPE_CHECKING:
    from qdrant_client import QdrantClient


_TERMS = "terms"
_HYBRID_CANDIDATES = 200


def _import_qdrant() -> Any:
    """Imports the package of Qdrant's client."""
    try:
        import qdrant_client
    except ImportError as error:
        raise ImportError("An index in Qdrant needs its client: `pip install 'cde-hf[qdrant]'`.") from error
    return qdrant_client


def _connect(location: "str | Path | QdrantClient") -> "QdrantClient":
    """Returns a client for a folder or for the URL of a server. A client is returned unchanged."""
    if not isinstance(location, (str, Path)):
        return location
    client_class = _import_qdrant().QdrantClient
    if isinstance(location, Path):
        return client_class(path=str(location))
    scheme, mark, rest = location.partition("://")
    if mark and scheme.lower() in ("http", "https"):
        return client_class(url=f"{scheme.lower()}://{rest}")
    if mark or re.fullmatch(r"[^/\\]+:\d+/?", location):
        # Neither the message nor the name of a folder may show a password.
        received = f"a URL with the scheme `{scheme}`" if mark else "a host and a port"
        raise ValueError(
            f"`location` must be a folder, or the URL of a server that starts with `http://` or `https://`, got "
            f"{received}. Write it as such a URL, or give a client: `QdrantClient(url=…, prefer_grpc=True)`."
        )
    return client_class(path=location)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turns errors of a server into messages that say what to do. Also a decorator."""
    exceptions = _import_qdrant().http.exceptions
    try:
        yield
    except exceptions.UnexpectedResponse as error:
        content = error.content[:200].decode(errors="replace")
        answer = f"Qdrant answered {error.status_code} ({error.reason_phrase}): {content}"
        if error.status_code in (401, 403):
            raise PermissionError(
                f"{answer}. The server requires a key with this permission. Give `QdrantClient(url=…, api_key=…)` "
                "instead of the URL."
            ) from error
        raise ConnectionError(
            f"{answer}. Expected a success: check the server's log and try again. Start an upload again."
        ) from error
    except exceptions.ResponseHandlingException as error:
        raise ConnectionError(
            f"Qdrant gave no readable answer ({error.source}). Check that its server runs at this URL and try again. "
            "Start an upload again."
        ) from error


class QdrantIndex:
    """
    An index in a collection of Qdrant. It encodes queries with its own context.

    Made by [`QdrantIndex.upload`] or [`QdrantIndex.open`].
    """

    def __init__(
        self, client: "QdrantClient", collection: str, model: SentenceTransformer, terms: "_Terms | None" = None
    ):
        self.client = client
        self.collection = collection
        self.model = model
        self.origin: VectorOrigin = vector_origin(model)
        self._embedder = SentenceTransformerEmbedder(model, "the model")
        self._terms = terms

    @classmethod
    @_clear_errors()
    def upload(
        cls, index: ContextualIndex, location: "str | Path | QdrantClient", collection: str, *, batch_size: int = 256
    ) -> "QdrantIndex":
        """
        Copies an index to a new collection. An upload that was interrupted is deleted and begins again.

        Args:
            index (`ContextualIndex`):
                The index.
            location (`str`, `Path` or `QdrantClient`):
                A folder for Qdrant's local mode, the URL of a server, or a client, for example with a key.
            collection (`str`):
                Name of the collection.
            batch_size (`int`, *optional*, defaults to `256`):
                Number of documents to send at once.

        Returns:
            `QdrantIndex`: The uploaded index.
        """
        check_counts(batch_size=batch_size)
        models = _import_qdrant().models
        client = _connect(location)
        record = _read_record(client, collection)
        if record is not None and "origin" in record:
            raise ValueError(
                f"The collection `{collection}` already holds an index. Open it with `QdrantIndex.open`, delete it "
                f"and `{_context_collection(collection)}`, or choose another name."
            )
        if client.collection_exists(collection):
            if record is None:
                raise ValueError(
                    f"The collection `{collection}` exists and was not made by an upload. Delete it, or choose "
                    "another name."
                )
            client.delete_collection(collection)  # what an interrupted upload left
        state = index._state  # the index may change meanwhile
        terms = None if state.terms is None else _Terms(state.terms.postings.statistics, state.terms.weight)
        uploaded = cls(client, collection, index.model, terms)
        uploaded._write_record({})
        distance = models.Distance.COSINE if index.origin.similarity == "cosine" else models.Distance.DOT
        client.create_collection(
            collection,
            vectors_config=models.VectorParams(size=state.dim, distance=distance),
            sparse_vectors_config={_TERMS: models.SparseVectorParams(modifier=models.Modifier.IDF)},
        )
        uploaded._upsert(state.column("id"), state.column("text"), state.vectors(), batch_size)
        context, origin = _encode_context(index.model), uploaded.origin.to_dict()
        uploaded._write_record({"origin": origin, "context": context, "terms": terms and terms.to_dict()})
        return uploaded

    @classmethod
    @_clear_errors()
    def open(cls, location: "str | Path | QdrantClient", collection: str, model: SentenceTransformer) -> "QdrantIndex":
        """
        Opens an uploaded index.

        Args:
            location (`str`, `Path` or `QdrantClient`):
                As in [`QdrantIndex.upload`].
            collection (`str`):
                Name of the collection.
            model (`SentenceTransformer`):
                The model that the index was made with. Its current context is ignored.

        Returns:
            `QdrantIndex`: The index.
        """
        client = _connect(location)
        record = _read_record(client, collection)
        if record is None or "origin" not in record:
            state = "no upload of this name" if record is None else "an incomplete upload"
            raise ValueError(
                f"There is no complete index in the collection `{collection}`: found {state}. Upload the index with "
                "`QdrantIndex.upload`."
            )
        model = model_of_index(
            f"The collection `{collection}`", model, _decode_context(record["context"]), record["origin"]
        )
        return cls(client, collection, model, _Terms.from_dict(record["terms"]) if record.get("terms") else None)

    @_clear_errors()
    def __len__(self) -> int:
        """Number of documents."""
        return self.client.count(self.collection, exact=True).count

    @_clear_errors()
    def search(self, query: str, *, depth: int = 10, hybrid: bool | None = None) -> list[SearchHit]:
        """
        Returns the best documents for a query, best first, as [`ContextualIndex.search`] does.

        Hybrid search scores the nearest documents and those with the highest BM25 scores, some hundred of each.
        """
        check_counts(depth=depth)
        vector = self._embedder.embed_queries([query])[0].tolist()
        if hybrid and self._terms is None:
            raise ValueError(NO_TEXTS)
        terms = None if hybrid is False or self._terms is None else self._terms.of_query(self.model.tokenizer, query)
        request = {"query": vector} if terms is None else _hybrid_query(vector, terms, depth)
        points = self.client.query_points(self.collection, limit=depth, **request).points
        payloads = [(point.payload or {}, point.score) for point in points]
        return [SearchHit(payload["id"], score, payload["text"]) for payload, score in payloads]

    @_clear_errors()
    def add(self, documents: Corpus, *, batch_size: int = 256) -> None:
        """Encodes a corpus with the index's own context and adds it, as for [`load_corpus`]. Its ids must be new."""
        check_counts(batch_size=batch_size)
        document_ids, texts = ids_and_texts(documents)
        known = self.client.retrieve(self.collection, [_point_id(name) for name in document_ids], with_payload=True)
        if known:
            raise ValueError(
                f"{len(known)} of {len(document_ids)} documents have ids that are in the collection, such as "
                f"{(known[0].payload or {})['id']!r}. Nothing was added: delete these first, or give new ids."
            )
        self._upsert(document_ids, texts, self._embedder.embed_documents(texts), batch_size)

    @_clear_errors()
    def delete(self, document_ids: Sequence[str]) -> None:
        """Deletes documents. If one is not in the collection, none is deleted."""
        refuse_one_id(document_ids)
        found = self.client.retrieve(self.collection, [_point_id(name) for name in document_ids], with_payload=True)
        missing = set(document_ids) - {(point.payload or {})["id"] for point in found}
        if missing:
            raise KeyError(
                f"{len(missing)} of {len(document_ids)} documents are not in the collection, such as "
                f"{sorted(missing)[:3]}. Nothing was deleted: leave them out."
            )
        self.client.delete(self.collection, points_selector=[_point_id(name) for name in document_ids])

    def _upsert(
        self, document_ids: Sequence[str], texts: Sequence[str | None], vectors: np.ndarray, batch_size: int
    ) -> None:
        models = _import_qdrant().models
        starts = range(0, len(document_ids), batch_size)
        for start in tqdm(starts, desc="Upload documents", unit="batch", disable=len(starts) < 2):
            rows = range(start, min(start + batch_size, len(document_ids)))
            part = slice(rows.start, rows.stop)
            sparse_vectors = self._terms.of_documents(self.model.tokenizer, texts[part]) if self._terms else {}
            points = [
                models.PointStruct(
                    id=_point_id(document_ids[row]),
                    vector={"": vectors[row].tolist()} | sparse_vectors.get(row - start, {}),
                    payload={"id": document_ids[row], "text": texts[row]},
                )
                for row in rows
            ]
            self.client.upsert(self.collection, points, wait=True)

    def _write_record(self, payload: dict[str, Any]) -> None:
        models = _import_qdrant().models
        name = _context_collection(self.collection)
        if not self.client.collection_exists(name):
            one = models.VectorParams(size=1, distance=models.Distance.DOT)
            self.client.create_collection(name, vectors_config=one)
        self.client.upsert(name, [models.PointStruct(id=0, vector=[0.0], payload=payload)], wait=True)


@dataclass(frozen=True)
class _Terms:
    """What turns texts into sparse vectors, by the statistics of the index that was uploaded."""

    statistics: TermStatistics
    weight: float

    def of_documents(self, tokenizer: Any, texts: Sequence[str | None]) -> dict[int, dict[str, Any]]:
        """The sparse vectors of texts, by their places. Texts without terms have none. Qdrant weighs the terms."""
        counted = count_terms(tokenizer, [text or "" for text in texts])
        return {
            place: _sparse(term_ids, saturate(counts, counts.sum(), self.statistics.mean_length))
            for place, (term_ids, counts) in enumerate(counted)
            if len(term_ids)
        }

    def of_query(self, tokenizer: Any, query: str) -> dict[str, Any] | None:
        """The sparse vector of a query, whose products are what BM25 adds to the scores. `None` without terms."""
        (term_ids,) = query_terms(tokenizer, [query])
        if not len(term_ids):
            return None
        scale = lexical_scale(self.statistics, term_ids, self.weight)
        return _sparse(term_ids, np.full(len(term_ids), scale))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, for JSON."""
        idf = base64.b64encode(self.statistics.idf.astype("<f4").tobytes()).decode()
        return {"idf": idf, "mean_length": self.statistics.mean_length, "weight": self.weight}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "_Terms":
        """Reads the output of `to_dict`."""
        idf = np.frombuffer(base64.b64decode(values["idf"]), dtype="<f4")
        return cls(TermStatistics(idf, values["mean_length"]), values["weight"])


def _sparse(term_ids: Any, values: Any) -> dict[str, Any]:
    return {_TERMS: _import_qdrant().models.SparseVector(indices=term_ids.tolist(), values=values.tolist())}


def _hybrid_query(vector: list[float], terms: dict[str, Any], depth: int) -> dict[str, Any]:
    """One query: the best by vectors and the best by terms, all of them scored by both, and the sum."""
    models = _import_qdrant().models
    sides: list[dict[str, Any]] = [{"query": vector}, {"query": terms[_TERMS], "using": _TERMS}]
    limit = max(depth, _HYBRID_CANDIDATES)
    near = [models.Prefetch(**side, limit=limit) for side in sides]
    both = [models.Prefetch(prefetch=near, **side, limit=2 * limit) for side in sides]
    total = models.SumExpression(sum=["$score[0]", "$score[1]"])
    return {"prefetch": both, "query": models.FormulaQuery(formula=total)}


def _read_record(client: "QdrantClient", collection: str) -> dict[str, Any] | None:
    """Reads the origin and context of an index. Empty if its upload is incomplete, `None` if there is none."""
    name = _context_collection(collection)
    points = client.retrieve(name, [0], with_payload=True) if client.collection_exists(name) else []
    return (points[0].payload or {}) if points else None


def _context_collection(collection: str) -> str:
    return f"{collection}-context"


def _point_id(document_id: str) -> str:
    # Qdrant only takes numbers and UUIDs; the id itself is in the payload.
    return str(uuid5(NAMESPACE_URL, document_id))


def _encode_context(model: SentenceTransformer) -> str | None:
    context = get_context(model)
    if context is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        context.save(Path(folder) / "context.safetensors")
        return base64.b64encode((Path(folder) / "context.safetensors").read_bytes()).decode()


def _decode_context(text: str | None) -> Context | None:
    if text is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "context.safetensors"
        path.write_bytes(base64.b64decode(text))
        return Context.load(path)


__all__ = ["QdrantIndex"]
