"""Arrow files that are either whole or made anew."""

import json

import pyarrow as pa
import pytest

from cde_hf.data import files
from cde_hf.data.files import cache_key, cached_dataset, write_rows


SCHEMA = pa.schema({"number": pa.int64()})


@pytest.fixture
def load(tmp_path):
    """Function that loads a cached dataset of 2,500 numbers and counts how often it was written."""

    def load_numbers():
        def write(path):
            load_numbers.num_writes += 1
            write_rows(({"number": number} for number in range(2500)), path, SCHEMA)
            return {"answer": 42}

        return cached_dataset(tmp_path, "numbers", write)

    load_numbers.num_writes = 0
    return load_numbers


def test_rows_and_facts_come_back_without_being_written_again(load):
    for _ in range(2):
        dataset, facts = load()
        assert dataset["number"][:] == list(range(2500))
        assert facts == {"answer": 42}
    assert load.num_writes == 1


def test_rows_stay_on_disk(load, tmp_path):
    dataset, _ = load()
    assert [file["filename"] for file in dataset.cache_files] == [str(tmp_path / "numbers.arrow")]


@pytest.mark.parametrize("num_bytes", [0, 100, -1000, -1])
def test_torn_rows_are_made_anew(load, tmp_path, num_bytes):
    load()
    content = (tmp_path / "numbers.arrow").read_bytes()
    (tmp_path / "numbers.arrow").write_bytes(content[:num_bytes])
    assert load()[0]["number"][:] == list(range(2500))
    assert load.num_writes == 2


@pytest.mark.parametrize("content", ["", '{"num_bytes": ', "[]", "{}", '{"num_bytes": 1, "facts": {}}'])
def test_torn_facts_are_made_anew(load, tmp_path, content):
    load()
    (tmp_path / "numbers.json").write_text(content)
    assert load()[1] == {"answer": 42}
    assert load.num_writes == 2


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    def write(path):
        write_rows([{"number": 1}], path, SCHEMA)
        raise ValueError("Interrupted.")

    with pytest.raises(ValueError, match="Interrupted"):
        cached_dataset(tmp_path, "numbers", write)
    assert list(tmp_path.iterdir()) == []


def test_no_rows_make_an_empty_dataset(tmp_path):
    def write(path):
        write_rows([], path, SCHEMA)
        return {}

    assert len(cached_dataset(tmp_path, "numbers", write)[0]) == 0


def test_the_default_folder_is_in_the_hugging_face_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "HF_HOME", str(tmp_path))
    cached_dataset(None, "numbers", lambda path: write_rows([], path, SCHEMA) or {})
    assert json.loads((tmp_path / "cde_hf" / "numbers.json").read_text())["facts"] == {}


def test_the_key_depends_on_the_facts_alone():
    assert cache_key("a", {"b": 1, "c": 2}) == cache_key("a", {"c": 2, "b": 1}) != cache_key("a", {"b": 1})
