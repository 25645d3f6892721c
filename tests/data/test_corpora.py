"""Corpora from files and folders."""

import gzip

import pytest

from cde_hf.data import RetrievalSet, save_retrieval_set
from cde_hf.data.corpora import load_corpus, load_documents


def test_a_text_file_has_a_document_a_line(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("first\n\n  second \n")
    assert load_documents(path) == ["first", "second"]


def test_a_gzipped_jsonl_file_has_texts_or_documents(tmp_path):
    path = tmp_path / "corpus.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"title": "Cats", "text": "They purr."}\n{"document": "Dogs bark."}\n')
    assert load_documents(path) == ["Cats They purr.", "Dogs bark."]


def test_a_retrieval_set_is_a_corpus(tmp_path):
    save_retrieval_set(RetrievalSet("pets", {"d": "A cat."}, {"q": "cat"}, {"q": {"d": 1}}), tmp_path / "pets")
    assert load_documents(tmp_path / "pets") == ["A cat."]


def test_a_line_without_text_is_named(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "fine"}\n{"body": "not so"}\n')
    with pytest.raises(ValueError, match=r"Line 2 of .*has the fields \['body'\].*Rename the field"):
        load_documents(path)


def test_a_missing_file_and_other_bytes_are_named(tmp_path):
    with pytest.raises(OSError, match=r"absent.txt"):
        load_documents(tmp_path / "absent.txt")
    path = tmp_path / "latin.txt"
    path.write_bytes("caf\xe9\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.txt"):
        load_documents(path)


def test_a_corpus_has_the_ids_of_the_file_or_numbers(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        '{"_id": "a", "title": "Cats", "text": "sleep."}\n{"id": 7, "text": "Dogs bark."}\n{"text": "x"}\n'
    )
    assert load_corpus(path) == {"a": "Cats sleep.", "7": "Dogs bark.", "2": "x"}
    (tmp_path / "corpus.txt").write_text("One.\n\nTwo.\n")
    assert load_corpus(tmp_path / "corpus.txt") == {"0": "One.", "1": "Two."}


def test_two_documents_with_one_id_are_named(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "text": "One."}\n{"_id": "a", "text": "Two."}\n')
    with pytest.raises(ValueError, match="Two documents of .* have the id `a`. Give each document an id of its own"):
        load_corpus(path)
