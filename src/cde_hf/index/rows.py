"""Ids and texts of documents, and which of them were removed. Values: a change makes a new one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa


DOCUMENTS_SCHEMA = pa.schema([("id", pa.large_string()), ("text", pa.large_string())])


class StoredDocuments:
    """
    Documents in a table, which may be a memory-mapped file.

    Args:
        table (`pyarrow.Table`):
            Columns `id` and `text`, of large strings.
    """

    def __init__(self, table: pa.Table):
        self.table = table
        self._ids, self._texts = table.columns

    @classmethod
    def of(cls, document_ids: Sequence[str], texts: Sequence[str | None]) -> "StoredDocuments":
        """Puts documents into a table."""
        return cls(_table(list(document_ids), list(texts)))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> tuple[str, str | None]:
        """Id and text of a document."""
        return self._ids[row].as_py(), self._texts[row].as_py()

    def row_of(self, document_id: str) -> int | None:
        """Row of a document. `None` if there is no such document."""
        return self._rows.get(document_id)

    @cached_property
    def _rows(self) -> dict[str, int]:  # only changes need them
        return {name: row for row, name in enumerate(self._ids.to_pylist())}


class AddedDocuments:
    """
    Documents in lists to which more documents are appended.

    All values that follow one another share the lists, and each reads its own part. So only the newest may be followed
    by another one.
    """

    def __init__(self) -> None:
        self._num_rows = 0
        self._ids: list[str] = []
        self._texts: list[str | None] = []
        self._rows: dict[str, int] = {}

    def followed_by(self, document_ids: Sequence[str], texts: Sequence[str | None]) -> "AddedDocuments":
        """Returns these documents and more."""
        new = AddedDocuments()
        new._ids, new._texts, new._rows = self._ids, self._texts, self._rows
        new._num_rows = self._num_rows + len(document_ids)
        # What stands behind the own rows is left of a change that failed.
        new._ids[self._num_rows :], new._texts[self._num_rows :] = document_ids, texts
        new._rows.update((name, row) for row, name in enumerate(document_ids, self._num_rows))
        return new

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, row: int) -> tuple[str, str | None]:
        """Id and text of a document."""
        return self._ids[row], self._texts[row]

    def row_of(self, document_id: str) -> int | None:
        """Row of a document, of the last one with this id. `None` if there is no such document."""
        row = self._rows.get(document_id)
        return row if row is not None and row < self._num_rows and self._ids[row] == document_id else None

    @property
    def table(self) -> pa.Table:
        """The documents as [`StoredDocuments`] have them."""
        return _table(self._ids[: self._num_rows], self._texts[: self._num_rows])


@dataclass(frozen=True, eq=False)
class RemovedRows:
    """
    Rows that are removed and keep their numbers.

    Args:
        bits (`np.ndarray` of shape `(num_bytes,)`, *optional*):
            A bit for each row, lowest first, which is set if the row is removed. Later rows are not.
        count (`int`, *optional*, defaults to `0`):
            Number of removed rows.
    """

    bits: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    count: int = 0

    def followed_by(self, rows: Sequence[int]) -> "RemovedRows":
        """Returns these rows and more, which must not be removed yet."""
        numbers = np.array(rows)
        bits = np.zeros(max(len(self.bits), int(numbers.max()) // 8 + 1), dtype=np.uint8)
        bits[: len(self.bits)] = self.bits
        np.bitwise_or.at(bits, numbers // 8, (1 << numbers % 8).astype(np.uint8))
        return RemovedRows(bits, self.count + len(rows))

    def __contains__(self, row: int) -> bool:
        return row // 8 < len(self.bits) and bool(self.bits[row // 8] >> row % 8 & 1)

    def is_live(self, start: int, num_rows: int) -> np.ndarray:
        """Whether each of some rows remains, of shape `(num_rows,)`. `start` is a multiple of 8."""
        if not self.count:
            return np.ones(num_rows, dtype=bool)
        return np.unpackbits(self.bits[start // 8 :], count=num_rows, bitorder="little") == 0


def _table(document_ids: list[str], texts: list[str | None]) -> pa.Table:
    return pa.table({"id": document_ids, "text": texts}, schema=DOCUMENTS_SCHEMA)


__all__ = ["DOCUMENTS_SCHEMA", "AddedDocuments", "RemovedRows", "StoredDocuments"]
