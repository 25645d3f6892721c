"""Retrieval sets in the layout of BEIR."""

import gzip
import json
import logging

import datasets
import pytest
from datasets import Dataset

from cde_hf.data import RetrievalSet, load_retrieval_set, save_retrieval_set


CORPUS = [{"_id": "d1", "title": "Dogs", "text": "They bark. "}, {"_id": "d2", "title": "", "text": "Cats sleep."}]
QUERIES = [{"_id": "q1", "text": "Who barks?"}, {"_id": "q2", "text": "Who sleeps?"}, {"_id": "q3", "text": "Why?"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n"
EXPECTED = RetrievalSet(
    "pets",
    corpus={"d1": "Dogs They bark.", "d2": "Cats sleep."},
    queries={"q1": "Who barks?", "q2": "Who sleeps?"},
    qrels={"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}},
)


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path):
    """A folder with a retrieval set, plain and with a header."""
    folder = tmp_path / "pets"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(json_lines(CORPUS))
    (folder / "queries.jsonl").write_text(json_lines(QUERIES))
    (folder / "qrels.tsv").write_text(QRELS)
    return folder


def test_title_and_text_are_joined(folder):
    assert load_retrieval_set(folder) == EXPECTED


def test_files_may_be_gzipped_and_judgements_lie_in_a_folder(folder):
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    (folder / "qrels").mkdir()
    (folder / "qrels.tsv").rename(folder / "qrels" / "test.tsv")
    assert load_retrieval_set(str(folder)) == EXPECTED


def test_texts_may_be_other_tables(folder):
    Dataset.from_list(CORPUS).to_parquet(folder / "corpus.parquet")
    Dataset.from_list(QUERIES).to_csv(folder / "queries.csv")
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).unlink()
    assert load_retrieval_set(folder) == EXPECTED


def test_numbers_may_be_ids(folder):
    (folder / "corpus.jsonl").write_text(json_lines([*CORPUS, {"_id": 3, "text": "Fish."}]))
    assert load_retrieval_set(folder).corpus["3"] == "Fish."


def test_a_file_of_pairs_is_a_retrieval_set(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "faq.csv"
    path.write_text("question,document\nWho barks?,A dog.\nWho purrs?,A cat.\n")
    retrieval_set = load_retrieval_set(path, columns={"query": "question"})
    assert (retrieval_set.name, retrieval_set.queries) == ("faq", {"q0": "Who barks?", "q1": "Who purrs?"})
    assert retrieval_set.qrels == {"q0": {"d0": 1}, "q1": {"d1": 1}}


def test_a_missing_folder_is_named():
    with pytest.raises(FileNotFoundError, match="There is no folder `nfcorpus`. Check the path: retrieval sets are"):
        load_retrieval_set("nfcorpus")


def test_judgements_need_no_header(folder):
    (folder / "qrels.tsv").write_text(QRELS.partition("\n")[2])
    assert load_retrieval_set(folder) == EXPECTED


def test_a_bad_first_judgement_is_not_taken_for_a_header(folder):
    (folder / "qrels.tsv").write_text("q1\td1\thigh\nq2\td2\t1\n")
    with pytest.raises(ValueError, match="Line 1 of `.*qrels.tsv` must hold a query id"):
        load_retrieval_set(folder)


def test_queries_without_a_positive_are_left_out_and_counted(folder, caplog):
    (folder / "qrels.tsv").write_text("q1\td1\t1\nq2\td2\t0\n")
    with caplog.at_level(logging.INFO, "cde_hf"):
        assert list(load_retrieval_set(folder).queries) == ["q1"]
    assert "Skipped 2 of 3 queries" in caplog.text


def test_a_set_without_any_positive_is_refused(folder):
    (folder / "qrels.tsv").write_text("q1\td1\t0\n")
    with pytest.raises(ValueError, match="`pets` has no queries, but must have one with a positive document"):
        load_retrieval_set(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("corpus.jsonl", "pets` has no `corpus`. Give a folder in the layout of BEIR"),
        ("queries.jsonl", "pets` has no `queries`"),
        ("qrels.tsv", "pets` has no `qrels.tsv`"),
    ],
)
def test_a_missing_file_is_named(folder, name, message):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        load_retrieval_set(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q9\td1\t1", "Line 5 of `.*qrels.tsv` names the query `q9`, which `queries.jsonl` lacks. Fix or remove it"),
        ("q2\td9\t1", "Line 5 of `.*qrels.tsv` names the document `d9`, which `corpus.jsonl` lacks"),
        ("q1\td1\t1", "Line 5 of `.*qrels.tsv` judges the document `d1` a second time for the query `q1`"),
        ("q2 d1 1", r"Line 5 of `.*qrels.tsv` must hold a query id, .* got 'q2 d1 1\\n'. Fix or remove it"),
        ("q2\td1\thigh", "Line 5 of `.*qrels.tsv` must hold a query id, a document id and an integer"),
    ],
)
def test_a_bad_judgement_is_named(folder, line, message):
    (folder / "qrels.tsv").write_text(f"{QRELS}{line}\n")
    with pytest.raises(ValueError, match=message):
        load_retrieval_set(folder)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_id": "d1", "text": "Fish."}, "Line 3 of `.*corpus.jsonl` has the id `d1` of an earlier row. Fix or rem"),
        ({"text": "Fish."}, "Line 3 of `.*corpus.jsonl` has no `_id`. Fix or remove it"),
        ({"_id": "d3"}, "got `None` for line 3 of `.*corpus.jsonl`"),
        ({"_id": "d\ud83d", "text": "Fish."}, r"The id 'd\\ud83d' has half of a character"),
    ],
)
def test_a_bad_document_is_named(folder, row, message):
    (folder / "corpus.jsonl").write_text(json_lines([*CORPUS, row]))
    with pytest.raises(ValueError, match=message):
        load_retrieval_set(folder)


def test_a_broken_file_is_named(folder):
    (folder / "queries.jsonl").write_bytes(b'{"_id": "q1", "text": "\xff"}\n')
    with pytest.raises(ValueError, match="Line 1 of `.*queries.jsonl` is not UTF-8"):
        load_retrieval_set(folder)


def test_a_saved_set_comes_back(tmp_path):
    save_retrieval_set(EXPECTED, tmp_path / "new" / "pets")
    assert load_retrieval_set(tmp_path / "new" / "pets") == EXPECTED
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["pets"]


def test_a_folder_in_use_is_not_written_over(folder):
    with pytest.raises(FileExistsError, match="pets` exists and is not an empty folder. Remove it or choose another"):
        save_retrieval_set(EXPECTED, folder)
