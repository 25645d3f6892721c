"""The check that a dataset holds pairs."""

import pytest
from datasets import Dataset, DatasetDict, Features, LargeList, Value

from cde_hf.data import check_pairs


PAIRS = {"query": ["Who barks?"], "document": ["A dog."]}


@pytest.mark.parametrize("columns", [{}, {"negatives": [["A cat."]]}, {"domain": ["pets"]}, {"number": [3]}])
def test_pairs_pass(columns):
    check_pairs(Dataset.from_dict({**PAIRS, **columns}))


def test_large_texts_and_lists_pass():
    text = Value("large_string")
    features = Features({"query": text, "document": text, "negatives": LargeList(text)})
    check_pairs(Dataset.from_dict({**PAIRS, "negatives": [["A cat."]]}, features=features))


def test_missing_columns_are_listed():
    with pytest.raises(
        ValueError, match=r"no column \['document'\]; it has \['query', 'answer'\]. Rename its columns"
    ):
        check_pairs(Dataset.from_dict({"query": ["a"], "answer": ["b"]}))


@pytest.mark.parametrize("name", ["query", "document", "domain"])
def test_a_column_of_numbers_is_refused(name):
    with pytest.raises(ValueError, match=rf"The column `{name}` must hold texts, got Value\('int64'\). Cast it"):
        check_pairs(Dataset.from_dict({**PAIRS, "domain": ["pets"], name: [3]}))


@pytest.mark.parametrize("values", [["A cat."], [[3]], [[["A cat."]]]])
def test_negatives_that_are_no_lists_of_texts_are_refused(values):
    with pytest.raises(ValueError, match="The column `negatives` must hold lists of texts, got .* with `load_pairs`"):
        check_pairs(Dataset.from_dict({**PAIRS, "negatives": values}))


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="The dataset has no rows, at least one pair was expected"):
        check_pairs(
            Dataset.from_dict({"query": [], "document": []}, features=Features(dict.fromkeys(PAIRS, Value("string"))))
        )


def test_a_dict_of_datasets_is_refused_with_a_hint():
    with pytest.raises(TypeError, match=r"`dataset` must be a .* Did you mean `dataset\['train'\]`\?"):
        check_pairs(DatasetDict(train=Dataset.from_dict(PAIRS)))


def test_lists_are_refused_with_a_hint():
    with pytest.raises(TypeError, match="got a `list`. Use `load_pairs` for files, `Dataset.from_dict` for lists"):
        check_pairs([PAIRS])
