"""
Reads a corpus, which is the same everywhere: a list of texts, texts by id, a `datasets.Dataset`, or a path.

Lists and datasets are not copied, because a corpus may have millions of documents.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

from ..messages import kind_of
from .sources import Table, find_file, open_tables


Corpus: TypeAlias = Sequence[str] | Mapping[str, str] | Dataset | str | os.PathLike[str]

_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may have one without its other half
_ID_COLUMNS = ("_id", "id")
_TEXT_COLUMNS = ("text", "document")
_ROWS_PER_BATCH = 1000


def load_corpus(corpus: Corpus, *, text_column: str | None = None) -> dict[str, str]:
    """
    Reads a corpus with the ids of its documents.

    Args:
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str` or `os.PathLike`):
            One of:

            - a list of texts, which get the ids `"0"`, `"1"`, …
            - texts by id
            - a dataset
            - the path of a table (JSONL, JSON, CSV, TSV or Parquet, of which only the last is never gzipped), of a
              text file with one document per line, of a folder of tables or of text files with one document each, of
              a folder that `save_to_disk` wrote, or of a retrieval set, of which only the corpus is read
            - the name of a dataset on the Hub, if there is no such path

            Datasets and tables may have ids in a column `_id` or `id`. A `title` is put before the text, with a space
            between them. The id of a file of text is its name.
        text_column (`str`, *optional*):
            Column of a dataset or table that has the texts, which are then read without titles. Defaults to `text`,
            `document`, or the only column of texts beside id and title.

    Returns:
        `dict[str, str]`: The documents by their ids. A document without an id gets its number, from `"0"`. Empty lines
        of text files are skipped.

    Example:

    ```python
    >>> load_corpus(["The cat sleeps.", "The dog barks."])
    {'0': 'The cat sleeps.', '1': 'The dog barks.'}

    ```
    """
    return dict(zip(*ids_and_texts(corpus, text_column=text_column), strict=True))


def load_documents(corpus: Corpus, *, text_column: str | None = None) -> Sequence[str]:
    """
    Reads the texts of a corpus. A list is returned unchanged, and the column of a dataset is read where it is indexed.

    Args:
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str` or `os.PathLike`):
            As for [`load_corpus`].
        text_column (`str`, *optional*):
            As for [`load_corpus`].

    Returns:
        `Sequence[str]`: The texts.
    """
    return _names_and_texts(corpus, text_column)[1]


def ids_and_texts(corpus: Corpus, *, text_column: str | None = None) -> tuple[list[str], Sequence[str]]:
    """Returns the ids and the texts of a corpus, as [`load_corpus`] and [`load_documents`] do."""
    names, texts = _names_and_texts(corpus, text_column)
    return _number_missing(names), texts


def ids_titles_and_texts(corpus: Corpus, *, text_column: str | None = None) -> tuple[list[str], list[str], list[str]]:
    """Returns the ids, the titles and the texts of a corpus. A document without a title has an empty one."""
    if isinstance(corpus, str | os.PathLike | Dataset):
        names, titles, texts = _read_tables(open_corpus(corpus), text_column)
        return _number_missing(names), titles, texts
    ids, documents = ids_and_texts(corpus, text_column=text_column)
    return ids, [""] * len(ids), list(documents)


def read_documents(
    tables: Iterable[Table], text_column: str | None = None
) -> Iterator[tuple[str, str | None, str, str]]:
    """Reads the place, the id or `None`, the title, if there is one, and the text of each document of tables."""
    for table in tables:
        column = find_text_column(table, text_column) if table.columns else ""
        for place, row in table.read([*_ID_COLUMNS, "title", column]):
            title = None if text_column is not None else row.get("title")
            check_text(row.get(column), place, error=ValueError)
            check_text(title or "", f"the title of {place}", error=ValueError)
            yield place, _to_id(row.get("_id", row.get("id"))), title or "", row[column]


def check_ids(document_ids: Iterable[str]) -> list[str]:
    """Returns ids as a list. Refuses duplicates and ids that are not strings."""
    document_ids = list(document_ids)
    if set(map(type, document_ids)) - {str}:
        other = next(document_id for document_id in document_ids if type(document_id) is not str)
        raise TypeError(f"Ids must be strings, got {other!r}. Use `str(document_id)`.")
    broken = next((document_id for document_id in document_ids if _SURROGATE.search(document_id)), None)
    if broken is not None:
        raise ValueError(f"The id {broken!r} has half of a character, so no file can hold it. Give another id.")
    if len(set(document_ids)) < len(document_ids):
        repeated = [name for name, count in Counter(document_ids).items() if count > 1]
        raise ValueError(f"Ids occur more than once, such as {repeated[:3]}. Give each document its own id.")
    return document_ids


def check_text(text: Any, place: str, *, error: type[Exception] = TypeError) -> None:
    """Refuses what is no text, and a text that no tokenizer can read. `place` names it in the message."""
    if not isinstance(text, str):
        raise error(
            f"Documents and queries must be texts, got {kind_of(text)} for {place}. Give its text or leave it out."
        )
    broken = None if text.isascii() else _SURROGATE.search(text)
    if broken is not None:
        raise ValueError(
            f"{place[0].upper()}{place[1:]} has half of a character ({broken[0]!r}) at position {broken.start()}, "
            "such as a broken emoji. No tokenizer can read it. Repair or remove it."
        )


def open_corpus(corpus: Any) -> list[Table]:
    """Opens the tables of a corpus that is a dataset or a path."""
    folder = Path(corpus).expanduser() if isinstance(corpus, str | os.PathLike) else None
    # A retrieval set has more tables than its corpus.
    return open_tables((find_file(folder, "corpus") if folder and os.path.isdir(folder) else None) or corpus)


def _read_tables(
    tables: Sequence[Table], text_column: str | None
) -> tuple[Iterable[str | None], list[str], list[str]]:
    documents = list(read_documents(tables, text_column))
    _check_not_empty(documents, tables[0].place)
    _, names, titles, texts = map(list, zip(*documents, strict=True))
    return names, titles, texts


def _names_and_texts(corpus: Any, text_column: str | None) -> tuple[Iterable[str | None], Sequence[str]]:
    """Returns an id or `None` for each document, and the checked texts."""
    names: Iterable[str | None]
    texts: Sequence[str]
    if isinstance(corpus, str | os.PathLike | Dataset | DatasetDict | IterableDataset | IterableDatasetDict):
        tables = open_corpus(corpus)
        if tables[0].dataset is None:
            names, titles, texts = _read_tables(tables, text_column)
            return names, list(map(join_title, titles, texts))
        names, texts = _read_dataset(tables[0], tables[0].dataset, text_column)
    elif text_column is not None:
        raise ValueError(
            f"`text_column={text_column!r}` was given with {kind_of(corpus)}, but only datasets and tables "
            "have columns. Leave it out."
        )
    elif isinstance(corpus, Mapping):
        names, texts = corpus.keys(), list(corpus.values())
        check_texts(texts, list(names))
    elif isinstance(corpus, Sequence) and not isinstance(corpus, bytes | bytearray):
        names, texts = repeat(None, len(corpus)), corpus
        check_texts(texts)
    else:
        raise TypeError(
            "A corpus must be a list of texts, texts by id, a `datasets.Dataset` or a path, got "
            f"{kind_of(corpus)}. Put the texts in a list."
        )
    _check_not_empty(texts)
    return names, texts


def _number_missing(names: Iterable[str | None]) -> list[str]:
    return check_ids([str(row) if name is None else name for row, name in enumerate(names)])


def _check_not_empty(documents: Sequence[Any], place: str = "it") -> None:
    if len(documents) == 0:
        raise ValueError(
            f"A corpus needs at least one document, but {place} has none. Check where the documents come from."
        )


def check_texts(
    texts: Sequence[Any],
    names: Sequence[Any] | None = None,
    *,
    kind: str = "document",
    error: type[Exception] = TypeError,
) -> None:
    """Checks all texts, each as [`check_text`] does. `kind` and name, or number, stand in the message."""
    if isinstance(texts, str | bytes) or not hasattr(texts, "__getitem__"):
        raise TypeError(f"A list of texts was expected, got {kind_of(texts)}. Put the texts in a list.")
    for start in range(0, len(texts), _ROWS_PER_BATCH):  # reading the column of a dataset row by row is slow
        for row, text in enumerate(texts[start : start + _ROWS_PER_BATCH], start):
            check_text(text, f"{kind} `{row if names is None else names[row]}`", error=error)


def _read_dataset(
    table: Table, dataset: Dataset, text_column: str | None
) -> tuple[Iterable[str | None], Sequence[str]]:
    """Returns the ids of a dataset, and its texts as a column that is read where it is indexed."""
    dataset = dataset.with_format(None)
    column = find_text_column(table, text_column)
    # A selection of rows may leave out the nulls of the table.
    if dataset.data.column(column).null_count > 0:
        check_texts(dataset[column], error=ValueError)
    id_column = next((name for name in _ID_COLUMNS if name in dataset.column_names), None)
    names = repeat(None, len(dataset)) if id_column is None else map(_to_id, dataset[id_column][:])
    if text_column is None and "title" in dataset.column_names:
        dataset = dataset.with_transform(lambda rows: {column: list(map(join_title, rows["title"], rows[column]))})
    return names, dataset[column]


def find_text_column(table: Table, text_column: str | None) -> str:
    """Finds the column of the documents."""
    texts = [name for name, holds_texts in table.columns.items() if holds_texts]
    if text_column is not None:
        if text_column in texts:
            return text_column
        raise ValueError(
            f"`{table.place}` has no column of texts `{text_column}`. Its columns of texts are {texts}: name one of "
            "them in `text_column`."
        )
    candidates = [name for name in _TEXT_COLUMNS if name in table.columns]
    candidates = candidates or [name for name in texts if name not in (*_ID_COLUMNS, "title")]
    if len(candidates) == 1 or (candidates and candidates[0] in _TEXT_COLUMNS):
        return candidates[0]
    raise ValueError(
        f"`{table.place}` has no column `text`, and its columns of texts are {texts}. Name the column of the "
        "documents in `text_column`."
    )


def _to_id(value: Any) -> str | None:
    return None if value is None else str(value)


def join_title(title: str | None, text: str) -> str:
    """Puts a title before its text."""
    return f"{title} {text}".strip() if title else text


__all__ = [
    "Corpus",
    "check_ids",
    "check_text",
    "check_texts",
    "find_text_column",
    "ids_and_texts",
    "ids_titles_and_texts",
    "join_title",
    "load_corpus",
    "load_documents",
    "open_corpus",
    "read_documents",
]
