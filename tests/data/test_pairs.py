"""Pairs from files, folders and datasets, cleaned and kept on disk."""

import gzip
import json
import logging

import pytest
from datasets import Dataset

from cde_hf.data import PairSource, check_pairs, clean_sources, load_pairs, load_sources, sources


PAIRS = [{"query": f"query {number}", "document": f"document {number}"} for number in range(5)]


def write_jsonl(path, rows):
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def load(tmp_path_factory):
    """`load_pairs` with a cache folder of its own."""
    folder = tmp_path_factory.mktemp("cache")

    def load_with_cache(source, **options):
        return load_pairs(source, cache_folder=folder, **options)

    load_with_cache.folder = folder
    return load_with_cache


@pytest.mark.parametrize("name", ["faq.jsonl", "faq.jsonl.gz", "faq.json", "faq.parquet", "faq.csv", "faq.tsv", "faq"])
def test_every_source_gives_the_same_pairs(load, tmp_path, name):
    path = tmp_path / name
    writers = {
        ".jsonl": lambda dataset: write_jsonl(path, PAIRS),
        ".gz": lambda dataset: write_jsonl(path, PAIRS),
        ".json": lambda dataset: path.write_text(json.dumps(PAIRS)),
        ".parquet": lambda dataset: dataset.to_parquet(path),
        ".csv": lambda dataset: dataset.to_csv(path),
        ".tsv": lambda dataset: dataset.to_csv(path, sep="\t"),
        "": lambda dataset: dataset.save_to_disk(path),
    }
    writers[path.suffix](Dataset.from_list(PAIRS))
    assert load(path).to_list() == [{**pair, "domain": "faq"} for pair in PAIRS]


def test_a_folder_gives_each_file_its_domain(load, tmp_path):
    write_jsonl(tmp_path / "b.jsonl.gz", PAIRS[:2])
    Dataset.from_list(PAIRS[2:]).to_parquet(tmp_path / "a-00000-of-00001.parquet")
    assert load(str(tmp_path))["domain"][:] == ["a", "a", "a", "b", "b"]


def test_columns_are_mapped(load, tmp_path):
    row = {"question": "Who barks?", "answer": "A dog.", "topic": "pets", "first": "A cat.", "second": "A fish."}
    columns = {"query": "question", "document": "answer", "domain": "topic", "negatives": ["first", "second"]}
    dataset = load(write_jsonl(tmp_path / "faq.jsonl", [row]), columns=columns)
    check_pairs(dataset)
    assert dataset[0] == {
        "query": "Who barks?",
        "document": "A dog.",
        "negatives": ["A cat.", "A fish."],
        "domain": "pets",
    }


def test_a_given_domain_goes_before_the_column(load):
    dataset = Dataset.from_list([{**PAIRS[0], "domain": "column"}])
    assert load(dataset, domain="given")["domain"][:] == ["given"]
    assert load(dataset)["domain"][:] == ["column"]


def test_a_named_domain_column_has_no_default(load, tmp_path):
    path = write_jsonl(tmp_path / "faq.jsonl", [{**PAIRS[0], "topic": "a"}, PAIRS[1]])
    assert load(path, columns={"domain": "topic"})["domain"][:] == ["a"]


def test_a_dataset_in_memory_needs_a_domain(load):
    with pytest.raises(ValueError, match="A dataset in memory has no name that could be its domain. Name the domain"):
        load(Dataset.from_list(PAIRS))


def test_the_format_of_a_dataset_does_not_matter(load):
    dataset = Dataset.from_list([{**PAIRS[0], "negatives": ["x", "y"]}]).with_format("numpy")
    assert load(dataset, domain="faq")["negatives"][:] == [["x", "y"]]


def test_a_dataset_on_the_hub_is_its_domain(load, monkeypatch):
    monkeypatch.setattr(sources, "load_dataset", lambda name, split: Dataset.from_list(PAIRS))
    assert set(load("owner/name")["domain"][:]) == {"owner/name"}


def test_wrong_columns_are_answered_with_the_right_ones(load, tmp_path):
    path = write_jsonl(tmp_path / "faq.jsonl", [{"question": "a", "answer": "b"}])
    with pytest.raises(
        ValueError, match=r"no column \['query', 'document'\]; it has \['question', 'answer'\]. Name the source's"
    ):
        load(path)
    with pytest.raises(ValueError, match=r"faq.jsonl` has no column \['reply', 'topic'\]; it has"):
        load(path, columns={"query": "question", "document": "reply", "domain": "topic"})


BAD_ROWS = [
    {"query": " ", "document": "a"},
    {"query": "", "document": "a"},
    {"query": "a"},
    {"query": "a", "document": 3},
    {"query": "a", "document": "b", "negatives": ["b"]},
    PAIRS[0],
    PAIRS[0],
]
COUNTS = {"empty": 2, "null": 1, "wrong_type": 1, "negative_is_document": 1, "duplicate": 2}


def test_bad_rows_are_counted_and_dropped(load, tmp_path, caplog):
    path = write_jsonl(tmp_path / "faq.jsonl", [*PAIRS, *BAD_ROWS])
    with caplog.at_level(logging.WARNING, "cde_hf"):
        assert load(path).select_columns(["query", "document"]).to_list() == PAIRS
    assert "7 of 12 rows are bad: 2 duplicate (first: the query 'query 0'); 2 empty (first: line 6 of" in caplog.text
    assert "They are dropped" in caplog.text
    _, report = clean_sources([PairSource(path)], cache_folder=load.folder)
    assert (report.num_rows, report.num_pairs, report.num_bad_rows) == (12, 5, COUNTS)


def test_bad_rows_are_refused_if_asked_even_from_the_cache(load, tmp_path):
    path = write_jsonl(tmp_path / "faq.jsonl", [*PAIRS, *BAD_ROWS])
    load(path)
    with pytest.raises(ValueError, match="7 of 12 rows are bad: .* Fix the data, or drop them with `bad_rows='drop'`"):
        load(path, bad_rows="refuse")


def test_good_rows_are_not_refused(load, tmp_path, caplog):
    path = write_jsonl(tmp_path / "faq.jsonl", PAIRS)
    with caplog.at_level(logging.INFO, "cde_hf"):
        assert len(load(path, bad_rows="refuse")) == 5
    assert "Read 5 pairs. 0 of 5 rows are bad: none." in caplog.text


def test_an_unknown_treatment_of_bad_rows_is_refused(load):
    with pytest.raises(ValueError, match="`bad_rows` must be 'drop' or 'refuse', got 'keep'"):
        load("faq.jsonl", bad_rows="keep")


def test_bad_rows_alone_are_refused(load, tmp_path):
    path = write_jsonl(tmp_path / "faq.jsonl", BAD_ROWS[:4])
    with pytest.raises(ValueError, match="There is no pair in `.*faq.jsonl`. 4 of 4 rows are bad: .* Check the data"):
        load(path)


def test_duplicates_far_apart_are_dropped_and_the_first_stays(load):
    rows = [{"query": f"query {number % 1500}", "document": "same"} for number in range(4000)]
    assert load(Dataset.from_list(rows), domain="faq")["query"][:] == [f"query {number}" for number in range(1500)]


def test_the_same_pair_may_stand_in_two_domains(load, tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name, PAIRS)
    assert len(load(tmp_path)) == 10
    assert len(load(tmp_path, domain="both")) == 5


def test_several_sources_make_one_dataset(load, tmp_path):
    with_negatives = Dataset.from_list([{**pair, "negatives": ["x"]} for pair in PAIRS[:2]])
    path = write_jsonl(tmp_path / "faq.jsonl", PAIRS)
    dataset = load_sources([PairSource(with_negatives, domain="a"), PairSource(path)], cache_folder=load.folder)
    assert dataset["domain"][:] == ["a"] * 2 + ["faq"] * 5
    assert dataset["negatives"][:] == [["x"]] * 2 + [[]] * 5


def test_no_sources_are_refused(load):
    with pytest.raises(ValueError, match="There is no pair in no source"):
        load_sources([], cache_folder=load.folder)


def test_pairs_are_read_once_while_the_file_stays_the_same(load, tmp_path):
    path = write_jsonl(tmp_path / "faq.jsonl", PAIRS)
    first = load(path)
    assert load(path)._fingerprint == first._fingerprint
    assert len(list(load.folder.rglob("*.arrow"))) == 1
    write_jsonl(path, PAIRS[:3])
    assert len(load(path)) == 3
    assert len(list(load.folder.rglob("*.arrow"))) == 2


def test_pairs_stay_on_disk(load, tmp_path):
    dataset = load(write_jsonl(tmp_path / "faq.jsonl", PAIRS))
    assert [file["filename"].startswith(str(load.folder)) for file in dataset.cache_files] == [True]


def test_torn_gzip_leaves_nothing_in_the_cache(load, tmp_path):
    path = write_jsonl(tmp_path / "faq.jsonl.gz", PAIRS * 2000)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="faq.jsonl.gz` cannot be unpacked"):
        load(path)
    assert not list(load.folder.rglob("*.arrow"))


@pytest.mark.parametrize("num_bytes", [0, 100, -1000, -9])
def test_pairs_in_the_cache_that_are_incomplete_are_read_again(load, tmp_path, num_bytes):
    path = write_jsonl(tmp_path / "faq.jsonl", [*PAIRS, *BAD_ROWS])
    pairs = load(path).to_list()
    (rows_file,) = load.folder.rglob("*.arrow")
    rows_file.write_bytes(rows_file.read_bytes()[:num_bytes])
    assert load(path).to_list() == pairs


def test_an_empty_file_has_no_pairs(load, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match="There is no pair in `.*empty.jsonl`. 0 of 0 rows are bad"):
        load(tmp_path / "empty.jsonl")
    write_jsonl(tmp_path / "faq.jsonl", PAIRS)
    assert len(load(tmp_path)) == 5


def test_a_mapping_the_wrong_way_round_is_refused():
    with pytest.raises(ValueError, match=r"has the keys \['question'\], but must map our names .* swap keys"):
        PairSource("faq.jsonl", columns={"question": "query"})


def test_only_negatives_may_have_several_columns():
    PairSource("faq.jsonl", columns={"negatives": ["first", "second"]})
    with pytest.raises(TypeError, match=r"must name one column for \['query'\]. Only `negatives` may have several"):
        PairSource("faq.jsonl", columns={"query": ["title", "text"]})


def test_a_domain_and_a_column_for_it_are_refused():
    with pytest.raises(ValueError, match="Both `domain='faq'` and the column `topic` were given for the domain"):
        PairSource("faq.jsonl", domain="faq", columns={"domain": "topic"})
