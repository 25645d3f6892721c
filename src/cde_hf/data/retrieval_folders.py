"""Retrieval sets on disk, in the layout of BEIR."""

import json
import os
import tempfile
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from transformers.utils import logging

from .retrieval_sets import RetrievalSet, has_positive
from .text_files import read_json_lines, read_lines


logger = logging.get_logger(__name__)


def load_retrieval_set(folder: str | os.PathLike) -> RetrievalSet:
    """
    Reads a retrieval set in the layout of BEIR.

    Args:
        folder (`str` or `os.PathLike`):
            Folder, whose name becomes that of the set, with `corpus.jsonl` (`_id`, `text`, perhaps `title`) and
            `queries.jsonl` (`_id`, `text`), gzipped or not, and the judgements in `qrels.tsv` or `qrels/test.tsv`
            (query id, document id and grade, with or without a header).

    Returns:
        `RetrievalSet`: The set. Title and text are joined by a space. Queries without a positive document are left
        out, and their number is logged.
    """
    folder = Path(folder).expanduser()
    corpus_file = _find_file(folder, "corpus.jsonl", "corpus.jsonl.gz")
    queries_file = _find_file(folder, "queries.jsonl", "queries.jsonl.gz")
    qrels_file = _find_file(folder, "qrels.tsv", "qrels/test.tsv")
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
        raise ValueError(f"Line {number} of `{qrels_file}` {fault}. Mend or remove it.")
    qrels = {query_id: grades for query_id, grades in qrels.items() if has_positive(grades)}
    if len(qrels) < len(queries):
        logger.info(
            f"Left out {len(queries) - len(qrels):,} of {len(queries):,} queries of `{folder}`: they have no positive "
            "document."
        )
    return RetrievalSet(folder.resolve().name, corpus, {query_id: queries[query_id] for query_id in qrels}, qrels)


def save_retrieval_set(retrieval_set: RetrievalSet, folder: str | os.PathLike) -> None:
    """
    Writes a retrieval set in the layout that [`load_retrieval_set`] reads. The folder appears when it is whole.

    Args:
        retrieval_set (`RetrievalSet`):
            The set.
        folder (`str` or `os.PathLike`):
            Folder to make. It must not exist, or be empty.
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


def _find_file(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"`{folder}` has neither {' nor '.join(names)}. Give a folder in the layout of BEIR: corpus, queries, qrels."
    )


def _read_texts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number, row in read_json_lines(path):
        fields = [row.get("_id"), row.get("title") or "", row.get("text")]
        if not all(isinstance(field, str) for field in fields):
            raise ValueError(
                f"Line {number} of `{path}` must have the strings `_id` and `text`, and `title` if any, got "
                f"{ {name: row.get(name) for name in ('_id', 'title', 'text')} }. Mend or remove it."
            )
        identifier, title, text = fields
        if identifier in texts:
            raise ValueError(
                f"Line {number} of `{path}` has the id `{identifier}` of an earlier line. Mend or remove it."
            )
        texts[identifier] = f"{title} {text}".strip()
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
                f"Line {number} of `{path}` must hold a query id, a document id and a whole number between "
                f"tabs, got {line!r}. Mend or remove it."
            )
        yield number, fields[0], fields[1], int(fields[2])


def _is_integer(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def _write_texts(path: Path, texts: dict[str, str]) -> None:
    _write_lines(path, (json.dumps({"_id": identifier, "text": text}) for identifier, text in texts.items()))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


__all__ = ["load_retrieval_set", "save_retrieval_set"]
