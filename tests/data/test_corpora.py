"""A corpus is a list of texts, texts by id, a dataset or a path, everywhere."""

import gzip

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from cde_hf.data import RetrievalSet, save_retrieval_set
from cde_hf.data.corpora import load_corpus, load_documents


TEXTS = ["The cat sleeps.", "The dog barks."]


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
    assert load_corpus(str(tmp_path / "pets")) == {"d": "A cat."}


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "corpus.txt").write_text("first\n")
    assert load_documents("~/corpus.txt") == ["first"]


@pytest.mark.parametrize("line", ['{"body": "not so"}', '{"body": "not so", "text": null}'])
def test_a_line_without_text_is_named(tmp_path, line):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(ValueError, match=r"Line 2 of .*has the fields \['body'.*Rename the field or remove the line"):
        load_documents(path)


def test_a_missing_file_and_other_bytes_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file or folder .*absent.txt`. Check the path"):
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
    for corpus in (path, Dataset.from_json(str(path), cache_dir=str(tmp_path / "cache"))):
        with pytest.raises(ValueError, match=r"1 ids occur more than once, such as \['a'\]. Give each document"):
            load_corpus(corpus)
        assert load_documents(corpus) == ["One.", "Two."]  # a context needs no ids


def test_a_list_is_numbered_and_not_copied():
    assert load_corpus(TEXTS) == {"0": TEXTS[0], "1": TEXTS[1]}
    assert load_documents(TEXTS) is TEXTS
    column = Dataset.from_dict({"body": TEXTS})["body"]
    assert load_documents(column) is column


def test_the_texts_of_a_dictionary_are_its_values():
    corpus = {"cat": TEXTS[0], "dog": TEXTS[1]}
    assert load_corpus(corpus) == corpus
    assert load_documents(corpus) == TEXTS


@pytest.mark.parametrize(
    "columns",
    [
        {"text": TEXTS, "language": ["en", "en"]},
        {"body": TEXTS, "length": [3, 3]},
        {"body": TEXTS, "title": ["", None], "_id": ["0", "1"]},
    ],
    ids=["text", "the only texts", "beside id and title"],
)
def test_the_texts_of_a_dataset_are_found(columns):
    dataset = Dataset.from_dict(columns)
    assert load_corpus(dataset) == {"0": TEXTS[0], "1": TEXTS[1]}
    assert list(load_documents(dataset.with_format("numpy"))) == TEXTS


def test_the_column_of_a_dataset_is_read_where_it_is_indexed():
    documents = load_documents(Dataset.from_dict({"text": TEXTS, "title": ["Cats", "Dogs"]}))
    assert not isinstance(documents, list)
    assert documents[1] == "Dogs The dog barks."
    assert documents[:1] == ["Cats The cat sleeps."]
    assert list(documents) == ["Cats The cat sleeps.", "Dogs The dog barks."]


def test_a_dataset_has_ids_in_a_column():
    dataset = Dataset.from_dict({"text": TEXTS, "id": [7, None]})
    assert load_corpus(dataset) == {"7": TEXTS[0], "1": TEXTS[1]}


def test_a_file_and_a_dataset_of_it_are_the_same_corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "title": "Cats", "text": "sleep."}\n{"_id": "b", "text": "Dogs bark."}\n')
    assert load_corpus(Dataset.from_json(str(path), cache_dir=str(tmp_path / "cache"))) == load_corpus(path)


def test_a_named_column_is_read_alone():
    dataset = Dataset.from_dict({"text": TEXTS, "title": ["Cats", "Dogs"], "body": ["one", "two"]})
    assert load_corpus(dataset, text_column="body") == {"0": "one", "1": "two"}
    assert list(load_documents(dataset, text_column="text")) == TEXTS


def test_a_selection_without_its_nulls_is_a_corpus():
    dataset = Dataset.from_dict({"text": [*TEXTS, None]})
    assert list(load_documents(dataset.select([0, 1]))) == TEXTS
    with pytest.raises(TypeError, match="must be texts, got a `NoneType` for document `2`"):
        load_documents(dataset)


PAIRS = Dataset.from_dict({"query": ["Who?"], "document": ["I."]})


@pytest.mark.parametrize(
    ("corpus", "error", "message"),
    [
        ("The cat sleeps.", FileNotFoundError, r"Did you mean a path\? There is no file or folder 'The cat sleeps.'"),
        ("The cat sleeps. " * 999, FileNotFoundError, r"A corpus of one text is a list: `\[text\]`"),
        ("\0", FileNotFoundError, r"There is no file or folder '\\x00'"),
        (5, TypeError, "must be a list of texts, texts by id, a `datasets.Dataset` or a path, got a `int`"),
        (None, TypeError, "got a `NoneType`. Put the texts in a list"),
        ({"a", "b"}, TypeError, "got a `set`. Put the texts in a list"),
        (np.array(TEXTS), TypeError, "got a `ndarray`. Put the texts in a list"),
        ([1, 2], TypeError, "Documents must be texts, got a `int` for document `0`. Give its text or leave it out"),
        (["a", None], TypeError, "got a `NoneType` for document `1`"),
        ({"a": "text", "b": None}, TypeError, "got a `NoneType` for document `b`"),
        ({1: "text"}, TypeError, "Ids must be strings, got the `int` 1. Use `str"),
        ([], ValueError, "A corpus needs at least one document, got none"),
        ({}, ValueError, "A corpus needs at least one document, got none"),
        (Dataset.from_dict({"text": TEXTS}).select([]), ValueError, "at least one document"),
        (
            DatasetDict(train=PAIRS),
            TypeError,
            r"got a `DatasetDict` with .* Did you mean `dataset\['train'\]`",
        ),
        (PAIRS.to_iterable_dataset(), TypeError, "got a `IterableDataset`. Load it without `streaming=True`"),
        (PAIRS, ValueError, r"its columns of texts are \['query', 'document'\]. Pass the column of the documents"),
        (Dataset.from_dict({"number": [1]}), ValueError, r"no column `text`, and its columns of texts are \[\]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_corpus_is_named(corpus, error, message):
    with pytest.raises(error, match=message):
        load_corpus(corpus)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"no column of texts `body`. Its columns of texts are \['query', 'document"):
        load_documents(PAIRS, text_column="body")
    with pytest.raises(ValueError, match="`text_column='body'` was given with a `list`, but only a `datasets"):
        load_documents(TEXTS, text_column="body")


def test_an_empty_file_is_no_corpus(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="A corpus needs at least one document"):
        load_corpus(tmp_path / "corpus.txt")


def test_half_of_a_character_is_named(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "text": "fine"}\n{"_id": "b", "text": "sad \\ud83d face"}\n')
    with pytest.raises(ValueError, match=r"Document `b` has half of a character \('\\ud83d'\) at position 4"):
        load_documents(path)
    with pytest.raises(ValueError, match="Document `1` has half of a character"):
        load_documents(["fine", "\udc00"])
    with pytest.raises(ValueError, match=r"The id 'x\\ud83d' has half of a character"):
        load_corpus({"x\ud83d": "text"})
    assert load_documents(["whole 🙂"]) == ["whole 🙂"]
