"""The docstring corpus of small libraries written for the test, and of real ones."""

import pytest

from cde_hf.data import HELD_OUT_LIBRARIES, check_pairs, docstring_pairs, docstring_split


REAL_LIBRARIES = ["click", "pydantic", "sortedcontainers"]


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def load(library_folder, tmp_path):
    """Function that gives the corpus of the libraries written for the test."""
    return lambda: docstring_pairs(libraries=["bees", "ants"], cache_folder=tmp_path / "cache").to_list()


def test_pairs_come_in_the_order_of_library_file_and_line(load, bodies):
    assert load() == [
        {"query": "About all the ants.", "document": bodies[1], "domain": "ants"},
        {"query": "Walk over the ants.", "document": bodies[0], "domain": "ants"},
        {"query": "Where all the bees live.", "document": bodies[3], "domain": "bees"},
    ]


def test_the_corpus_is_kept_until_a_library_changes_its_version(load, library_folder):
    pairs = load()
    (library_folder / "bees" / "hive.py").unlink()
    assert load() == pairs
    (library_folder / "bees-2.0.dist-info" / "METADATA").write_text("Name: bees\nVersion: 2.1\n")
    assert load() == pairs[:2]


def test_a_torn_corpus_is_made_anew(load, tmp_path):
    pairs = load()
    (rows_file,) = (tmp_path / "cache").rglob("*.arrow")
    rows_file.write_bytes(rows_file.read_bytes()[:100])
    assert load() == pairs


def test_real_libraries_give_pairs(cache_folder):
    dataset = docstring_pairs(libraries=REAL_LIBRARIES, cache_folder=cache_folder)
    check_pairs(dataset)
    assert dataset.column_names == ["query", "document", "domain"]
    assert sorted(set(dataset["domain"])) == REAL_LIBRARIES
    assert len(set(dataset["document"])) == len(dataset) > 400
    assert max(map(len, dataset["document"])) <= 1200


def test_the_corpus_is_the_same_each_time(cache_folder, tmp_path):
    dataset = docstring_pairs(libraries=REAL_LIBRARIES, cache_folder=cache_folder)
    again = docstring_pairs(libraries=REAL_LIBRARIES[::-1], cache_folder=tmp_path)
    assert again.to_dict() == dataset.to_dict()


def test_held_out_libraries_are_kept_from_training(cache_folder):
    training_pairs, retrieval_sets = docstring_split(libraries=REAL_LIBRARIES, cache_folder=cache_folder)
    assert sorted(set(training_pairs["domain"])) == ["click", "sortedcontainers"]
    assert [retrieval_set.name for retrieval_set in retrieval_sets] == ["pydantic"]
    assert set(retrieval_sets[0].corpus.values()).isdisjoint(training_pairs["document"])
    assert len(retrieval_sets[0].queries) >= 300


def test_held_out_libraries_alone_are_refused(cache_folder):
    with pytest.raises(ValueError, match=r"All of the libraries \['pydantic'\] are held out, so no pair is left"):
        docstring_split(libraries=["pydantic"], cache_folder=cache_folder)


@pytest.mark.slow
def test_the_whole_corpus_has_tens_of_thousands_of_pairs(cache_folder):
    training_pairs, retrieval_sets = docstring_split(cache_folder=cache_folder)
    assert len(training_pairs) > 20_000
    assert [retrieval_set.name for retrieval_set in retrieval_sets] == list(HELD_OUT_LIBRARIES)
    assert all(len(retrieval_set.queries) >= 300 for retrieval_set in retrieval_sets)
