"""
An index in Qdrant: the same vectors, documents and context, in a folder or on a server.

A collection holds the documents. A second collection, whose name ends in `-context`, holds one point with the origin
of the vectors and the context. It is written last, so its absence marks an incomplete upload.
"""

import base64
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..contextual_models import get_context, with_context
from ..data import Corpus, ids_and_texts
from ..modeling import Context
from ..modeling.context import fingerprint
from ..vectors import SentenceTransformerEmbedder, VectorOrigin, vector_origin
from .contextual_index import ContextualIndex
from .state import SearchHit


if TYPE_CHECKING:
    from qdrant_client import QdrantClient


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
    is_url = str(location).startswith(("http://", "https://"))
    return _import_qdrant().QdrantClient(**({"url": str(location)} if is_url else {"path": str(location)}))


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
            f"{answer}. Expected a success: check the server's log and try again. An upload resumes."
        ) from error
    except exceptions.ResponseHandlingException as error:
        raise ConnectionError(
            f"Qdrant gave no readable answer ({error.source}). Check that its server runs at this URL and try again. "
            "An upload resumes."
        ) from error


class QdrantIndex:
    """
    An index in a collection of Qdrant. It encodes queries with its own context.

    Made by [`QdrantIndex.upload`] or [`QdrantIndex.open`].
    """

    def __init__(self, client: "QdrantClient", collection: str, model: SentenceTransformer):
        self.client = client
        self.collection = collection
        self.model = model
        self.origin: VectorOrigin = vector_origin(model)
        self._embedder = SentenceTransformerEmbedder(model, "the model")

    @classmethod
    @_clear_errors()
    def upload(
        cls, index: ContextualIndex, location: "str | Path | QdrantClient", collection: str, *, batch_size: int = 256
    ) -> "QdrantIndex":
        """
        Copies an index to a new collection, or resumes an interrupted upload.

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
        models = _import_qdrant().models
        client = _connect(location)
        if _read_record(client, collection) is not None:
            raise ValueError(
                f"The collection `{collection}` already holds an index. Open it with `QdrantIndex.open`, delete it, "
                "or choose another name."
            )
        if not client.collection_exists(collection):
            distance = models.Distance.COSINE if index.origin.similarity == "cosine" else models.Distance.DOT
            size = index.vectors.shape[1]
            client.create_collection(collection, vectors_config=models.VectorParams(size=size, distance=distance))
        uploaded = cls(client, collection, index.model)
        uploaded._upsert(index.document_ids, index.texts, index.vectors, batch_size)
        uploaded._write_record()
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
        if record is None:
            state = "an incomplete upload" if client.collection_exists(collection) else "no such collection"
            raise ValueError(
                f"There is no complete index in the collection `{collection}`: found {state}. Upload the index with "
                "`QdrantIndex.upload`."
            )
        origin = VectorOrigin.from_dict(record["origin"])
        if fingerprint(model) != origin.model:
            raise ValueError(
                f"The collection `{collection}` was made with another model ({origin.model}, this one is "
                f"{fingerprint(model)}). Give that model, or upload the index again."
            )
        opened = cls(client, collection, with_context(model, _decode_context(record["context"]), origin.settings))
        if opened.origin != origin:
            raise ValueError(
                f"The collection `{collection}` was made with other settings: {opened.origin.differences(origin)}. "
                "Set them on the model, or upload the index again."
            )
        return opened

    @_clear_errors()
    def __len__(self) -> int:
        """Number of documents."""
        return self.client.count(self.collection, exact=True).count

    @_clear_errors()
    def search(self, query: str, *, depth: int = 10) -> list[SearchHit]:
        """Returns the best documents for a query, best first. The query is encoded with the index's own context."""
        vector = self._embedder.embed_queries([query])[0]
        points = self.client.query_points(self.collection, query=vector.tolist(), limit=depth).points
        payloads = [(point.payload or {}, point.score) for point in points]
        return [SearchHit(payload["id"], score, payload["text"]) for payload, score in payloads]

    @_clear_errors()
    def add(self, documents: Corpus, *, batch_size: int = 256) -> None:
        """Encodes a corpus with the index's own context and adds it, as for [`load_corpus`]. Its ids must be new."""
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
        """Deletes documents."""
        self.client.delete(self.collection, points_selector=[_point_id(name) for name in document_ids])

    def _upsert(
        self, document_ids: Sequence[str], texts: Sequence[str | None], vectors: np.ndarray, batch_size: int
    ) -> None:
        models = _import_qdrant().models
        starts = range(0, len(document_ids), batch_size)
        for start in tqdm(starts, desc="Upload documents", unit="batch", disable=len(starts) < 2):
            rows = range(start, min(start + batch_size, len(document_ids)))
            points = [
                models.PointStruct(
                    id=_point_id(document_ids[row]),
                    vector=vectors[row].tolist(),
                    payload={"id": document_ids[row], "text": texts[row]},
                )
                for row in rows
            ]
            self.client.upsert(self.collection, points, wait=True)

    def _write_record(self) -> None:
        models = _import_qdrant().models
        name = _context_collection(self.collection)
        payload = {"origin": self.origin.to_dict(), "context": _encode_context(self.model)}
        vectors_config = models.VectorParams(size=1, distance=models.Distance.DOT)
        if not self.client.collection_exists(name):
            self.client.create_collection(name, vectors_config=vectors_config)
        self.client.upsert(name, [models.PointStruct(id=0, vector=[0.0], payload=payload)], wait=True)


def _read_record(client: "QdrantClient", collection: str) -> dict[str, Any] | None:
    """Reads the origin and context of an index, `None` if its upload is incomplete."""
    name = _context_collection(collection)
    points = client.retrieve(name, [0], with_payload=True) if client.collection_exists(name) else []
    return points[0].payload if points else None


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
