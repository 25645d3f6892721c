"""A corpus in Parquet files, which is read file by file and block by block, so it may be larger than the memory."""

import hashlib
import os
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from datasets import Dataset
from datasets.table import InMemoryTable

from .corpora import Corpus, check_ids, find_text_column, join_title, open_corpus, read_documents
from .sources import open_parquet, open_tables


@dataclass(frozen=True)
class ParquetCorpus:
    """
    A corpus in Parquet files on a disk that all processes share.

    Args:
        paths (`tuple[Path, ...]`):
            The files, in the order of their names.
        text_column (`str`, *optional*):
            Column of the texts, as for [`load_corpus`].
    """

    paths: tuple[Path, ...]
    text_column: str | None = None

    @classmethod
    def open(cls, corpus: Corpus, *, text_column: str | None = None) -> "ParquetCorpus | None":
        """
        Opens the corpus at a path. `None` if it is not in Parquet files.

        A file that cannot be read, or that has no column of texts, is refused before anything is encoded.
        """
        if not isinstance(corpus, str | os.PathLike) or not os.path.exists(corpus):
            return None
        tables = open_corpus(corpus)
        if not all(table.dataset is None and table.place.endswith(".parquet") for table in tables):
            return None
        for table in tables:
            find_text_column(table, text_column)
        return cls(tuple(Path(table.place).resolve() for table in tables), text_column)

    @cached_property
    def num_documents(self) -> list[int]:
        """Number of documents of each file."""
        return [open_parquet(path).metadata.num_rows for path in self.paths]

    @cached_property
    def fingerprints(self) -> list[str]:
        """Size of each file and hash of its footer, which has the places and the statistics of all its columns."""
        return [_fingerprint(path) for path in self.paths]

    def blocks(self, number: int, size: int) -> Iterator[tuple[list[str], list[str]]]:
        """Ids and texts of one file, at most `size` at once. The id of a document without one is its number."""
        first = sum(self.num_documents[:number])
        rows = enumerate(read_documents(open_corpus(self.paths[number]), self.text_column), start=first)
        while block := list(islice(rows, size)):
            ids = check_ids([str(row) if name is None else name for row, (_, name, _, _) in block])
            yield ids, [join_title(title, text) for _, (_, _, title, text) in block]

    def sample(self, size: int, *, seed: int) -> list[str]:
        """Samples texts, in the order of the corpus. Reads only the row groups that they are in."""
        total = sum(self.num_documents)
        wanted = range(total) if total <= size else sorted(random.Random(seed).sample(range(total), size))
        rows, start = deque(wanted), 0
        texts: list[str] = []
        for path in self.paths:
            file = open_parquet(path)
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                inside = []
                while rows and rows[0] < stop:
                    inside.append(rows.popleft() - start)
                if inside:
                    columns = {"title", find_text_column(open_tables(path)[0], self.text_column)}
                    table = file.read_row_group(group, columns=sorted(columns & set(file.schema_arrow.names)))
                    found = open_tables(Dataset(InMemoryTable(table.take(inside))))
                    texts += [join_title(title, text) for _, _, title, text in read_documents(found, self.text_column)]
                start = stop
        return texts


def _fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(-8, os.SEEK_END) + 8
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return f"{size} {hashlib.blake2b(file.read(length), digest_size=8).hexdigest()}"


__all__ = ["ParquetCorpus"]
