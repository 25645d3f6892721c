"""A corpus is a list of texts, texts by id, a dataset or a path, everywhere."""

import gzip
import json

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from cde_hf.data import RetrievalSet, save_retrieval_set, sources
from cde_hf.data.corpora import ids_titles_and_texts, load_corpus, load_documents


TEXTS = ["The cat sleeps.", "The dog barks."]


def test_a_text_file_has_a_document_a_line(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("first\n\n  second \n")
    assert load_documents(path) == ["first", "second"]


def test_a_gzipped_jsonl_file_has_texts_or_documents(tmp_path):
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"title": "Cats", "text": "They purr."}\n{"text": "Dogs bark."}\n'))
    assert load_documents(path) == ["Cats They purr.", "Dogs bark."]
    path.write_bytes(gzip.compress(b'{"query": "Who?", "document": "Dogs bark."}\n'))
    assert load_documents(path) == ["Dogs bark."]


TABLE = {"_id": ["007", "b"], "title": ["Cats", "Dogs"], "text": ["They purr, often.", "A dog\nbarks."]}


@pytest.mark.parametrize("name", ["c.jsonl", "c.json", "c.csv", "c.tsv", "c.parquet", "saved", "folder", "beir"])
def test_every_source_gives_the_same_corpus(tmp_path, name):
    path, dataset = tmp_path / name, Dataset.from_dict(TABLE)
    if not path.suffix and name != "saved":
        path.mkdir()
    writers = {
        "c.jsonl": lambda: dataset.to_json(path),
        "c.json": lambda: path.write_text(json.dumps(dataset.to_list())),
        "c.csv": lambda: dataset.to_csv(path),
        "c.tsv": lambda: dataset.to_csv(path, sep="\t"),
        "c.parquet": lambda: dataset.to_parquet(path),
        "saved": lambda: dataset.save_to_disk(path),
        "folder": lambda: [dataset.select([row]).to_csv(path / f"{row}.csv") for row in range(2)],
        "beir": lambda: [dataset.to_csv(path / "corpus.csv"), (path / "queries.csv").write_text("_id,text\n")],
    }
    writers[name]()
    assert load_corpus(path) == {"007": "Cats They purr, often.", "b": "Dogs A dog\nbarks."}
    assert list(load_documents(str(path), text_column="text")) == TABLE["text"]
    assert list(load_documents(path, text_column="title")) == TABLE["title"]
    assert ids_titles_and_texts(path) == (TABLE["_id"], TABLE["title"], TABLE["text"])


def test_a_folder_of_text_files_is_a_corpus_of_files(tmp_path):
    (tmp_path / "a.txt").write_text("One\ntwo.\n")
    (tmp_path / "b.txt").write_text("Three.\n")
    assert load_corpus(tmp_path) == {"a.txt": "One\ntwo.", "b.txt": "Three."}


def test_a_dataset_on_the_hub_is_a_corpus(monkeypatch):
    monkeypatch.setattr(sources, "load_dataset", lambda name, split: Dataset.from_dict(TABLE))
    assert load_documents("owner/name")[0] == "Cats They purr, often."


def test_a_saved_corpus_stays_on_disk(tmp_path):
    Dataset.from_dict(TABLE).save_to_disk(tmp_path / "saved")
    assert not isinstance(load_documents(tmp_path / "saved"), list)


def test_a_retrieval_set_is_a_corpus(tmp_path):
    save_retrieval_set(RetrievalSet("pets", {"d": "A cat."}, {"q": "cat"}, {"q": {"d": 1}}), tmp_path / "pets")
    assert load_documents(tmp_path / "pets") == ["A cat."]
    assert load_corpus(str(tmp_path / "pets")) == {"d": "A cat."}


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "corpus.txt").write_text("first\n")
    assert load_documents("~/corpus.txt") == ["first"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("null", "must be texts, got `None` for line 2 of `.*corpus.jsonl`. Give its text or leave it out"),
        ("3", "got a `int` for line 2 of"),
        ('["nested"]', "got a `list` for line 2 of"),
        ('"x \\ud83d"', r"Line 2 of `.*corpus.jsonl` has half of a character \('\\ud83d'\) at position 2, such as"),
        ('"fine", "title": 7', "got a `int` for the title of line 2 of"),
    ],
)
def test_a_bad_row_is_named(tmp_path, value, message):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{{"text": {value}}}\n')
    with pytest.raises(ValueError, match=message):
        load_documents(path)


def test_a_column_that_cannot_be_guessed_is_asked_for(tmp_path):
    path = tmp_path / "corpus.csv"
    path.write_text("id,title,body,summary\n1,a,b,c\n")
    message = (
        r"`.*corpus.csv` has no column `text`, and .* are \['id', 'title', 'body', 'summary'\]. Name the column .*"
    )
    with pytest.raises(ValueError, match=f"{message}`text_column`"):
        load_documents(path)
    assert load_documents(path, text_column="body") == ["b"]
    with pytest.raises(ValueError, match="corpus.csv` has no column of texts `absent`. Its columns of texts are"):
        load_documents(path, text_column="absent")


def test_a_missing_file_and_other_bytes_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file or folder '.*absent.txt'. Check the path"):
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
        with pytest.raises(ValueError, match=r"Ids occur more than once, such as \['a'\]. Give each document"):
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
    with pytest.raises(ValueError, match="must be texts, got `None` for document `2`"):
        load_documents(dataset)


PAIRS = Dataset.from_dict({"query": ["Who?"], "document": ["I."]})
AMBIGUOUS = Dataset.from_dict({"one": ["Who?"], "two": ["I."]})


def test_the_documents_of_pairs_are_a_corpus():
    assert load_corpus(PAIRS) == {"0": "I."}


@pytest.mark.parametrize(
    ("corpus", "error", "message"),
    [
        ("The cat sleeps.", FileNotFoundError, "There is no file or folder 'The cat sleeps.'. Check the path"),
        ("The cat sleeps. " * 999, FileNotFoundError, r"A text is passed in a list: `\[text\]`"),
        ("\0", FileNotFoundError, r"There is no file or folder '\\x00'"),
        (b"text", TypeError, "got a `bytes`. Put the texts in a list"),
        ((text for text in TEXTS), TypeError, "got a `generator`. Put the texts in a list"),
        (["a", b"b"], TypeError, "got a `bytes` for document `1`"),
        (["a", ["b"]], TypeError, "got a `list` for document `1`"),
        (5, TypeError, "must be a list of texts, texts by id, a `datasets.Dataset` or a path, got a `int`"),
        (None, TypeError, "got `None`. Put the texts in a list"),
        ({"a", "b"}, TypeError, "got a `set`. Put the texts in a list"),
        (np.array(TEXTS), TypeError, "got a `ndarray`. Put the texts in a list"),
        ([1, 2], TypeError, "must be texts, got a `int` for document `0`. Give its text or leave it out"),
        (["a", None], TypeError, "got `None` for document `1`"),
        ({"a": "text", "b": None}, TypeError, "got `None` for document `b`"),
        ({1: "text"}, TypeError, "Ids must be strings, got 1. Use `str"),
        ([], ValueError, "A corpus needs at least one document, but it has none"),
        ({}, ValueError, "A corpus needs at least one document, but it has none"),
        (Dataset.from_dict({"text": TEXTS}).select([]), ValueError, "at least one document"),
        (
            DatasetDict(train=PAIRS),
            TypeError,
            r"got a `DatasetDict` with .* Did you mean `dataset\['train'\]`",
        ),
        (PAIRS.to_iterable_dataset(), TypeError, "got a `IterableDataset`. Load it without `streaming=True`"),
        (AMBIGUOUS, ValueError, r"its columns of texts are \['one', 'two'\]. Name the column of the documents in"),
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
    with pytest.raises(ValueError, match="`text_column='body'` was given with a `list`, but only datasets and"):
        load_documents(TEXTS, text_column="body")


def test_an_empty_file_is_no_corpus(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="A corpus needs at least one document"):
        load_corpus(tmp_path / "corpus.txt")


def test_half_of_a_character_is_named(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "text": "fine"}\n{"_id": "b", "text": "sad \\ud83d face"}\n')
    with pytest.raises(ValueError, match=r"Line 2 of `.*` has half of a character \('\\ud83d'\) at position 4"):
        load_documents(path)
    with pytest.raises(ValueError, match="Document `1` has half of a character"):
        load_documents(["fine", "\udc00"])
    with pytest.raises(ValueError, match=r"The id 'x\\ud83d' has half of a character"):
        load_corpus({"x\ud83d": "text"})
    assert load_documents(["whole 🙂"]) == ["whole 🙂"]
