"""Where pairs come from."""

import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from cde_hf.data import PairSource, sources
from cde_hf.data.sources import open_tables


ROWS = Dataset.from_dict({"query": ["a", "b"], "document": ["c", "d"], "picture": [1, 2]})


def test_every_file_of_a_folder_is_a_table_named_without_shard_number(tmp_path):
    (tmp_path / "faq.jsonl").write_text('{"query": "a"}\n')
    ROWS.to_parquet(tmp_path / "train-00000-of-00002.parquet")
    tables = open_tables(PairSource(tmp_path))
    assert [(table.name, table.row_word) for table in tables] == [("faq", "line"), ("train", "row")]
    assert [list(table.columns) for table in tables] == [["query"], ["query", "document", "picture"]]


def test_the_identity_changes_with_the_file(tmp_path):
    path = tmp_path / "faq.jsonl"
    path.write_text('{"query": "a"}\n')
    identity = open_tables(PairSource(path))[0].identity
    assert open_tables(PairSource(str(path)))[0].identity == identity
    path.write_text('{"query": "bb"}\n')
    assert open_tables(PairSource(path))[0].identity != identity


def test_a_dataset_gives_the_columns_that_are_needed():
    (table,) = open_tables(PairSource(ROWS.with_format("numpy")))
    assert table.name is None
    assert list(table.read(["document", "domain"])) == [(1, {"document": "c"}), (2, {"document": "d"})]


def test_a_name_on_the_hub_is_loaded_by_datasets(monkeypatch):
    calls = []
    monkeypatch.setattr(sources, "load_dataset", lambda *args, **kwargs: calls.append((args, kwargs)) or ROWS)
    (table,) = open_tables(PairSource("sentence-transformers/natural-questions", split="train[:10]"))
    assert calls == [(("sentence-transformers/natural-questions",), {"split": "train[:10]"})]
    assert table.name == "sentence-transformers/natural-questions"


def test_a_name_that_is_nowhere_is_refused():
    with pytest.raises(
        FileNotFoundError, match="`nobody/nothing` is not a local file or folder, and was not found on the Hub"
    ):
        open_tables(PairSource("nobody/nothing"))


@pytest.mark.parametrize("source", ["./absent", "~/absent", "/a/b", "a/b/c", "absent.jsonl.gz", "b/absent.parquet"])
def test_a_path_is_not_taken_for_a_name_on_the_hub(source):
    with pytest.raises(FileNotFoundError, match="There is no file or folder `.*`. Check the path"):
        open_tables(PairSource(source))


def test_files_have_no_splits(tmp_path):
    ROWS.to_json(tmp_path / "faq.jsonl")
    with pytest.raises(ValueError, match="`split='test'` was given, but only datasets on the Hub have splits"):
        open_tables(PairSource(tmp_path / "faq.jsonl", split="test"))


def test_a_dict_of_datasets_is_refused_with_a_hint():
    splits = DatasetDict(train=ROWS, test=ROWS)
    with pytest.raises(TypeError, match=r"splits \['train', 'test'\]. Did you mean `dataset\['train'\]`\?"):
        open_tables(PairSource(splits))
    with pytest.raises(TypeError, match=r"Did you mean `dataset\['test'\]`\?"):
        open_tables(PairSource(DatasetDict(test=ROWS)))


def test_a_stream_is_refused_with_a_hint():
    with pytest.raises(TypeError, match="got a `IterableDataset`. Load it without `streaming=True`"):
        open_tables(PairSource(IterableDataset.from_generator(lambda: iter(()))))


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
