"""Documents in rows: their ids, texts and vectors, which come, go and are found together. No model is needed here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .index_kinds import read_rows
from .vector_rows import VectorRows


_DOCUMENTS_FILE = "documents.parquet"


@dataclass(frozen=True)
class SearchHit:
    """
    A document that was found.

    Args:
        document_id (`str`):
            Its id.
        score (`float`):
            Inner product of its vector with the query's; the cosine, if the model compares by it.
        text (`str`, *optional*):
            Its text, if the index has it.
    """

    document_id: str
    score: float
    text: str | None = None


class DocumentRows:
    """
    Documents whose ids, texts and vectors stand in the same rows.

    Args:
        vectors (`VectorRows`):
            Their vectors.
        document_ids (`list[str]`):
            Their ids, each there once.
        texts (`list[str | None]`):
            Their texts, `None` where they are not known.
    """

    def __init__(self, vectors: VectorRows, document_ids: list[str], texts: list[str | None]):
        self._vectors = vectors
        self._document_ids = document_ids
        self._texts = texts
        self._known_rows: dict[str, int] | None = None

    @classmethod
    def read(cls, paths: Mapping[str, Path]) -> "DocumentRows":
        """Reads what [`DocumentRows.writers`] wrote, from paths by their names."""
        table = pq.read_table(paths[_DOCUMENTS_FILE])
        return cls(read_rows(paths), table["id"].to_pylist(), table["text"].to_pylist())

    def __len__(self) -> int:
        return len(self._vectors)

    def __contains__(self, document_id: str) -> bool:
        return document_id in self._row_numbers

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._vectors.dim

    @property
    def document_ids(self) -> list[str]:
        """Ids of the documents, in the order of their vectors."""
        return [name for name, is_live in zip(self._document_ids, self._vectors.is_live, strict=True) if is_live]

    @property
    def texts(self) -> list[str | None]:
        """Texts of the documents, in the same order."""
        return [text for text, is_live in zip(self._texts, self._vectors.is_live, strict=True) if is_live]

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the vectors, of shape `(num_documents, dim)`."""
        return self._vectors.vectors

    def search(self, query_vectors: np.ndarray, depth: int) -> list[list[SearchHit]]:
        """For each query its documents, best first; fewer than `depth` if there are no more."""
        scores, rows = self._vectors.search(query_vectors, max(1, min(depth, len(self))))
        return [
            [
                SearchHit(self._document_ids[row], score, self._texts[row])
                for row, score in zip(row_list, score_list, strict=True)
                if row >= 0
            ]
            for row_list, score_list in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def add(self, document_ids: list[str], vectors: np.ndarray, texts: list[str | None]) -> None:
        """Adds documents, whose ids must be new."""
        self._row_numbers.update({name: number for number, name in enumerate(document_ids, len(self._document_ids))})
        self._vectors.add(vectors)
        self._document_ids.extend(document_ids)
        self._texts.extend(texts)

    def remove(self, document_ids: Sequence[str]) -> None:
        """Takes documents out, which must be there."""
        rows = [self._row_numbers.pop(document_id) for document_id in dict.fromkeys(document_ids)]
        self._vectors.remove(np.array(rows, dtype=np.int64))

    def compact(self) -> None:
        """Gives up the room of the documents that were taken out."""
        self._document_ids, self._texts, self._known_rows = self.document_ids, self.texts, None
        self._vectors.compact()

    def refuse_known(self, document_ids: Sequence[str]) -> None:
        """Refuses ids that are there."""
        known = [document_id for document_id in document_ids if document_id in self]
        if known:
            raise ValueError(
                f"{len(known)} of {len(document_ids)} documents have ids that are in the index, such as {known[:3]}. "
                "Nothing was added: delete these first, or give new ids."
            )

    def refuse_missing(self, document_ids: Sequence[str]) -> None:
        """Refuses ids that are not there."""
        missing = [document_id for document_id in document_ids if document_id not in self]
        if missing:
            raise KeyError(
                f"{len(missing)} of {len(document_ids)} documents are not in the index, such as {missing[:3]}. "
                "Nothing was deleted: leave them out."
            )

    def writers(self) -> dict[str, Callable[[Path], None]]:
        """For each file name a function that writes the path it is given. Call [`DocumentRows.compact`] before."""
        return {self._vectors.file_name: self._vectors.write, _DOCUMENTS_FILE: self._write_documents}

    def _write_documents(self, path: Path) -> None:
        columns = {"id": pa.array(self._document_ids, pa.string()), "text": pa.array(self._texts, pa.string())}
        pq.write_table(pa.table(columns), path)

    @property
    def _row_numbers(self) -> dict[str, int]:
        if self._known_rows is None:
            numbers = np.flatnonzero(self._vectors.is_live).tolist()
            self._known_rows = {self._document_ids[number]: number for number in numbers}
        return self._known_rows


__all__ = ["DocumentRows", "SearchHit"]
