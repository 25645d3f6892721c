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

from .files import read_json_lines, read_lines
from .retrieval_sets import find_corpus_file
from .sources import expect_dataset, is_text


Corpus: TypeAlias = Sequence[str] | Mapping[str, str] | Dataset | str | os.PathLike[str]

_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may have one without its other half
_ROWS_PER_BATCH = 1000


def load_corpus(corpus: Corpus, *, text_column: str | None = None) -> dict[str, str]:
    """
    Reads a corpus with the ids of its documents.

    Args:
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str` or `os.PathLike`):
            One of:

            - a list of texts, which get the ids `"0"`, `"1"`, …
            - texts by id
            - a dataset, with ids in an optional column `_id` or `id`
            - the path of a text file with one document per line, of a `.jsonl` file of objects with `text` or
              `document` and an optional `_id` or `id`, or of the folder of a retrieval set, of which
              only the corpus is read. Files may be gzipped.

            A `title` in a file or dataset is put before the text, with a space between them.
        text_column (`str`, *optional*):
            Column of a dataset that has the texts, which are then read without titles. Defaults to `text`, or to the
            only column of texts.

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


def ids_titles_and_texts(corpus: Corpus) -> tuple[list[str], list[str], list[str]]:
    """Returns the ids, the titles and the texts of a corpus. A document without a title has an empty one."""
    if isinstance(corpus, str | os.PathLike):
        documents = list(_read_path(corpus))
        _check_not_empty(documents)
        names, titles, texts = zip(*documents, strict=True)
        return _number_missing(names), list(titles), list(texts)
    if isinstance(corpus, Dataset) and "title" in corpus.column_names:
        # A column that is named is read without titles.
        ids, column = ids_and_texts(corpus, text_column=_text_column(corpus, None))
        return ids, [str(title or "") for title in corpus.with_format(None)["title"]], list(column)
    ids, column = ids_and_texts(corpus)
    return ids, [""] * len(ids), list(column)


def check_ids(document_ids: Iterable[str]) -> list[str]:
    """Returns ids as a list. Refuses duplicates and ids that are not strings."""
    document_ids = list(document_ids)
    if set(map(type, document_ids)) - {str}:
        other = next(document_id for document_id in document_ids if type(document_id) is not str)
        raise TypeError(f"Ids must be strings, got the `{type(other).__name__}` {other!r}. Use `str(document_id)`.")
    broken = next((document_id for document_id in document_ids if _SURROGATE.search(document_id)), None)
    if broken is not None:
        raise ValueError(f"The id {broken!r} has half of a character, so no file can hold it. Give another id.")
    if len(set(document_ids)) < len(document_ids):
        repeated = [name for name, count in Counter(document_ids).items() if count > 1]
        raise ValueError(
            f"{len(repeated)} ids occur more than once, such as {repeated[:3]}. Give each document its own id."
        )
    return document_ids


def _names_and_texts(corpus: Corpus, text_column: str | None) -> tuple[Iterable[str | None], Sequence[str]]:
    """Returns an id or `None` for each document, and the checked texts."""
    names: Iterable[str | None]
    texts: Sequence[str]
    if isinstance(corpus, Dataset | DatasetDict | IterableDataset | IterableDatasetDict):
        names, texts = _read_dataset(corpus, text_column)
    elif text_column is not None:
        raise ValueError(
            f"`text_column={text_column!r}` was given with a `{type(corpus).__name__}`, but only a `datasets.Dataset` "
            "has columns. Leave it out."
        )
    elif isinstance(corpus, str | os.PathLike):
        documents = list(_read_path(corpus))
        names, texts = [name for name, _, _ in documents], [_join(title, text) for _, title, text in documents]
        _check_texts(texts, [str(row) if name is None else name for row, name in enumerate(names)])
    elif isinstance(corpus, Mapping):
        names, texts = corpus.keys(), list(corpus.values())
        _check_texts(texts, list(names))
    elif isinstance(corpus, Sequence):
        names, texts = repeat(None, len(corpus)), corpus
        _check_texts(texts, range(len(texts)))
    else:
        raise TypeError(
            "A corpus must be a list of texts, texts by id, a `datasets.Dataset` or a path, got a "
            f"`{type(corpus).__name__}`. Put the texts in a list."
        )
    _check_not_empty(texts)
    return names, texts


def _number_missing(names: Iterable[str | None]) -> list[str]:
    return check_ids([str(row) if name is None else name for row, name in enumerate(names)])


def _check_not_empty(documents: Sequence[Any]) -> None:
    if len(documents) == 0:
        raise ValueError("A corpus needs at least one document, got none. Check where the documents come from.")


def _check_texts(texts: Sequence[Any], names: Sequence[Any]) -> None:
    for start in range(0, len(texts), _ROWS_PER_BATCH):  # reading the column of a dataset row by row is slow
        for row, text in enumerate(texts[start : start + _ROWS_PER_BATCH], start):
            if not isinstance(text, str):
                raise TypeError(
                    f"Documents must be texts, got a `{type(text).__name__}` for document `{names[row]}`. Give its "
                    "text or leave it out."
                )
            broken = None if text.isascii() else _SURROGATE.search(text)
            if broken is not None:
                raise ValueError(
                    f"Document `{names[row]}` has half of a character ({broken[0]!r}) at position {broken.start()}, "
                    "such as a broken emoji. No tokenizer can read it. Repair or remove it."
                )


def _read_dataset(dataset: Any, text_column: str | None) -> tuple[Iterable[str | None], Sequence[str]]:
    expect_dataset(dataset, "corpus")
    dataset = dataset.with_format(None)
    column = _text_column(dataset, text_column)
    # A selection of rows may leave out the nulls of the table.
    if dataset.data.column(column).null_count > 0:
        _check_texts(dataset[column], range(len(dataset)))
    id_column = next((name for name in ("_id", "id") if name in dataset.column_names), None)
    names = repeat(None, len(dataset)) if id_column is None else map(_to_id, dataset[id_column][:])
    if text_column is None and "title" in dataset.column_names:
        dataset = dataset.with_transform(lambda rows: {column: list(map(_join, rows["title"], rows[column]))})
    return names, dataset[column]


def _text_column(dataset: Dataset, text_column: str | None) -> str:
    columns = [name for name, feature in dataset.features.items() if is_text(feature)]
    if text_column is not None:
        if text_column in columns:
            return text_column
        raise ValueError(
            f"The dataset has no column of texts `{text_column}`. Its columns of texts are {columns}: name one of "
            "them in `text_column`."
        )
    candidates = ["text"] if "text" in columns else [name for name in columns if name not in ("_id", "id", "title")]
    if len(candidates) == 1:
        return candidates[0]
    raise ValueError(
        f"The dataset has no column `text`, and its columns of texts are {columns}. Pass the column of the documents: "
        "`dataset['…']`."
    )


def _read_path(corpus: str | os.PathLike[str]) -> Iterator[tuple[str | None, str, str]]:
    """Reads an id or `None`, the title, if there is one, and the text of each document."""
    path = Path(corpus).expanduser()
    if not os.path.exists(path):  # not `Path.exists`, which raises an error if the text is too long for a file name
        if not isinstance(corpus, str):
            raise FileNotFoundError(f"There is no file or folder `{path}`. Check the path.")
        raise FileNotFoundError(
            f"Did you mean a path? There is no file or folder {corpus[:80]!r}. A corpus of one text is a list: "
            "`[text]`."
        )
    if path.is_dir():
        path = find_corpus_file(path)
    if ".jsonl" in path.suffixes:
        for number, fields in read_json_lines(path):
            name, title = _to_id(fields.get("_id", fields.get("id"))), str(fields.get("title") or "")
            yield name, title, _text(path, number, fields)
    else:
        yield from ((None, "", line.strip()) for _, line in read_lines(path) if line.strip())


def _text(path: Path, number: int, fields: dict[str, Any]) -> str:
    text = fields.get("text", fields.get("document"))
    if not isinstance(text, str):
        raise ValueError(
            f"Line {number} of `{path}` has the fields {sorted(fields)}, but a document is a string in `text` "
            "or `document`. Rename the field or remove the line."
        )
    return text


def _to_id(value: Any) -> str | None:
    return None if value is None else str(value)


def _join(title: str | None, text: str) -> str:
    return f"{title or ''} {text}".strip()


__all__ = ["Corpus", "check_ids", "ids_and_texts", "ids_titles_and_texts", "load_corpus", "load_documents"]
