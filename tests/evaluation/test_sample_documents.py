"""Sampling context documents."""

import pytest
from datasets import Dataset

from cde_hf import sample_documents


CORPUS = [f"document {number}" for number in range(100)]


def test_documents_are_sampled_once_and_the_same_for_a_seed():
    first, again = (sample_documents(CORPUS, 12, seed=3) for _ in range(2))
    assert first == again
    assert len(set(first)) == 12
    assert set(first) <= set(CORPUS)
    assert first != sample_documents(CORPUS, 12, seed=4)


def test_a_small_corpus_is_taken_whole():
    assert sample_documents(["a", "b"], 5) == ["a", "b"]


def test_a_column_of_a_dataset_is_a_corpus():
    column = Dataset.from_dict({"text": CORPUS})["text"]
    assert sample_documents(column, 5, seed=1) == sample_documents(CORPUS, 5, seed=1)


@pytest.mark.parametrize("corpus", [CORPUS, []])
def test_a_size_of_zero_is_refused(corpus):
    with pytest.raises(ValueError, match=r"`size` must be at least 1, got 0. For no context use `Context\(\)`"):
        sample_documents(corpus, 0)
