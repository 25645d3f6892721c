"""Retrieval sets: a corpus, queries, and which documents answer them; in memory, and on disk in the layout of BEIR."""

import json
import os
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers.utils import logging

from ..messages import count_of
from .cleaning import check_pairs
from .corpora import check_ids, check_texts, read_documents
from .pairs import load_pairs
from .sources import find_file, open_tables, read_lines


logger = logging.get_logger(__name__)

_ROWS_PER_BATCH = 1000
_CORPUS_ALONE = "If it is a corpus without queries, use `cde-hf evaluate MODEL --corpus {}`."


@dataclass(frozen=True, repr=False)
class RetrievalSet:
    """
    A corpus to search, queries, and judgements of which documents answer them.

    Args:
        name (`str`):
            Name of the set.
        corpus (`dict[str, str]`):
            Text of each document by its id.
        queries (`dict[str, str]`):
            Text of each query by its id. Every query has a positive document.
        qrels (`dict[str, dict[str, int]]`):
            For each query id the grades of the judged documents by their ids. A grade above 0 makes a document
            positive.
    """

    name: str
    corpus: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]

    def __repr__(self) -> str:
        documents, queries = count_of(len(self.corpus), "document"), count_of(len(self.queries), "query")
        return f"{type(self).__name__}({self.name!r}, {documents}, {queries})"

    def __post_init__(self) -> None:
        check_texts(list(self.corpus.values()), list(self.corpus), kind=f"document of `{self.name}`")
        check_texts(list(self.queries.values()), list(self.queries), kind=f"query of `{self.name}`")
        if not self.queries:
            raise ValueError(
                f"`{self.name}` has no queries, but must have one with a positive document. Check its files."
            )
        if self.queries.keys() != self.qrels.keys():
            incomplete = sorted(self.queries.keys() ^ self.qrels.keys())[:5]
            raise ValueError(
                f"The queries {incomplete} of `{self.name}` have a text or judgements, but must have both. Add what "
                "is missing or remove them."
            )
        for query_id, grades in self.qrels.items():
            unknown = grades.keys() - self.corpus.keys()
            if unknown:
                raise ValueError(
                    f"The judgements of query `{query_id}` of `{self.name}` name the documents {sorted(unknown)[:5]}, "
                    "which its corpus lacks. Add the documents or remove the judgements."
                )
            if not _has_positive(grades):
                raise ValueError(
                    f"Query `{query_id}` of `{self.name}` has no document with a grade above 0. Remove the query."
                )


def retrieval_set_from_pairs(name: str, dataset: Dataset) -> RetrievalSet:
    """
    Makes a retrieval set from pairs.

    The corpus is the distinct documents. A query is answered by every document that it is paired with. Texts are
    stripped of white space.

    Args:
        name (`str`):
            Name of the set.
        dataset (`datasets.Dataset`):
            Pairs, with the columns `query` and `document`.

    Returns:
        `RetrievalSet`: The set. Ids are numbered in the order of the pairs, `d0`, `d1`, … and `q0`, `q1`, …

    Example:

    ```python
    >>> from datasets import Dataset
    >>> rows = {"query": ["Who barks?", "Who barks?"], "document": ["A dog barks.", "Dogs bark."]}
    >>> retrieval_set_from_pairs("pets", Dataset.from_dict(rows)).qrels
    {'q0': {'d0': 1, 'd1': 1}}

    ```
    """
    check_pairs(dataset)
    document_ids: dict[str, str] = {}
    query_ids: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for batch in dataset.with_format(None).select_columns(["query", "document"]).iter(batch_size=_ROWS_PER_BATCH):
        for query, document in zip(batch["query"], batch["document"], strict=True):
            document_id = document_ids.setdefault(document.strip(), f"d{len(document_ids)}")
            query_id = query_ids.setdefault(query.strip(), f"q{len(query_ids)}")
            qrels.setdefault(query_id, {})[document_id] = 1
    return RetrievalSet(
        name,
        corpus={document_id: text for text, document_id in document_ids.items()},
        queries={query_id: text for text, query_id in query_ids.items()},
        qrels=qrels,
    )


def load_retrieval_set(
    source: str | os.PathLike, *, columns: Mapping[str, str | Sequence[str]] | None = None
) -> RetrievalSet:
    """
    Reads a retrieval set in the layout of BEIR, or makes one from a file of pairs.

    Args:
        source (`str` or `os.PathLike`):
            Folder with the tables `corpus` (`_id`, `text`, optional `title`) and `queries` (`_id`, `text`), such as
            `corpus.jsonl.gz` or `queries.csv`, and the judgements in `qrels.tsv` or `qrels/test.tsv` (query id,
            document id and grade, with or without a header). Or a file of pairs, as for [`load_pairs`]. The set takes
            the name of the folder or file.
        columns (`Mapping`, *optional*):
            The names of the columns of a file of pairs, as for [`load_pairs`].

    Returns:
        `RetrievalSet`: The set. Title and text are joined by a space. Queries without a positive document are skipped,
        and their number is logged.
    """
    folder = Path(source).expanduser()
    if folder.is_file():
        try:
            pairs = load_pairs(folder, columns=columns)
        except ValueError as error:
            if columns or "query" in open_tables(folder)[0].columns:
                raise
            raise ValueError(f"{error} {_CORPUS_ALONE.format(folder)}") from error
        return retrieval_set_from_pairs(folder.stem, pairs)
    corpus_file, queries_file = (_find_file(folder, find_file(folder, name), name) for name in ("corpus", "queries"))
    qrels_files = (folder / name for name in ("qrels.tsv", "qrels/test.tsv"))
    qrels_file = _find_file(folder, next((path for path in qrels_files if path.is_file()), None), "qrels.tsv")
    corpus, queries = _read_texts(corpus_file), _read_texts(queries_file)
    qrels: dict[str, dict[str, int]] = {query_id: {} for query_id in queries}
    for number, query_id, document_id, grade in _read_judgements(qrels_file, queries):
        if query_id not in queries:
            fault = f"names the query `{query_id}`, which `{queries_file.name}` lacks"
        elif document_id not in corpus:
            fault = f"names the document `{document_id}`, which `{corpus_file.name}` lacks"
        elif document_id in qrels[query_id]:
            fault = f"judges the document `{document_id}` a second time for the query `{query_id}`"
        else:
            qrels[query_id][document_id] = grade
            continue
        raise ValueError(f"Line {number} of `{qrels_file}` {fault}. Fix or remove it.")
    qrels = {query_id: grades for query_id, grades in qrels.items() if _has_positive(grades)}
    if len(qrels) < len(queries):
        logger.info(
            f"Skipped {len(queries) - len(qrels):,} of {len(queries):,} queries of `{folder}`: they have no positive "
            "document."
        )
    return RetrievalSet(folder.resolve().name, corpus, {query_id: queries[query_id] for query_id in qrels}, qrels)


def save_retrieval_set(retrieval_set: RetrievalSet, folder: str | os.PathLike) -> None:
    """
    Writes a retrieval set in the layout that [`load_retrieval_set`] reads. The folder appears when it is complete.

    Args:
        retrieval_set (`RetrievalSet`):
            The set.
        folder (`str` or `os.PathLike`):
            Folder to create. It must be empty or not exist.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"`{folder}` exists and is not an empty folder. Remove it or choose another one.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary_folder:
        new_folder = Path(temporary_folder) / "retrieval_set"
        new_folder.mkdir()
        _write_texts(new_folder / "corpus.jsonl", retrieval_set.corpus)
        _write_texts(new_folder / "queries.jsonl", retrieval_set.queries)
        judgements = (
            f"{query_id}\t{document_id}\t{grade}"
            for query_id, grades in retrieval_set.qrels.items()
            for document_id, grade in grades.items()
        )
        _write_lines(new_folder / "qrels.tsv", ["query-id\tcorpus-id\tscore", *judgements])
        os.replace(new_folder, folder)


def _has_positive(grades: dict[str, int]) -> bool:
    """Whether any judged document is positive."""
    return any(grade > 0 for grade in grades.values())


def _find_file(folder: Path, file: Path | None, name: str) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder `{folder}`. Check the path: retrieval sets are folders or files on disk."
        )
    if file is None:
        raise FileNotFoundError(
            f"`{folder}` has no `{name}`. Give a folder in the layout of BEIR (corpus.jsonl, queries.jsonl, "
            f"qrels.tsv), or a file of pairs. {_CORPUS_ALONE.format(folder)}"
        )
    return file


def _read_texts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for place, identifier, title, text in read_documents(open_tables(path)):
        if identifier is None or identifier in texts:
            fault = "no `_id`" if identifier is None else f"the id `{identifier}` of an earlier row"
            raise ValueError(f"{place[0].upper()}{place[1:]} has {fault}. Fix or remove it.")
        texts[identifier] = f"{title} {text}".strip()
    check_ids(texts)
    return texts


def _read_judgements(path: Path, queries: Container[str]) -> Iterator[tuple[int, str, str, int]]:
    for number, line in read_lines(path):
        fields = line.rstrip("\r\n").split("\t")
        is_judgement = len(fields) == 3 and _is_integer(fields[2])
        is_header = number == 1 and not is_judgement and fields[0] not in queries
        if is_header or line.isspace():
            continue
        if not is_judgement:
            raise ValueError(
                f"Line {number} of `{path}` must hold a query id, a document id and an integer, separated by "
                f"tabs, got {line!r}. Fix or remove it."
            )
        yield number, fields[0], fields[1], int(fields[2])


def _is_integer(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def _write_texts(path: Path, texts: dict[str, str]) -> None:
    _write_lines(path, (json.dumps({"_id": identifier, "text": text}) for identifier, text in texts.items()))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


__all__ = ["RetrievalSet", "load_retrieval_set", "retrieval_set_from_pairs", "save_retrieval_set"]
