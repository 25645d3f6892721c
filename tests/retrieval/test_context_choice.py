"""Choosing context documents."""

import numpy as np
import pytest
from datasets import Dataset

from cde_hf.retrieval.context_choice import choose_documents


@pytest.fixture
def corpus():
    """Ninety documents on one topic and two on each of five others."""
    generator = np.random.default_rng(0)
    common = [f"common {' '.join(f'common{word}' for word in generator.integers(0, 20, 8))}" for _ in range(90)]
    rare = [f"rare{topic} " + f"word{topic} " * 6 + f"{copy}" for topic in range(5) for copy in range(2)]
    return [*common, *rare]


@pytest.mark.parametrize("method", ["random", "spread"])
def test_documents_are_chosen_once_and_the_same_for_a_seed(corpus, method):
    first, again = (choose_documents(corpus, 12, method=method, seed=3) for _ in range(2))
    assert first == again
    assert len(set(first)) == 12
    assert set(first) <= set(corpus)
    assert first != choose_documents(corpus, 12, method=method, seed=4)


def test_spread_documents_show_rare_topics(corpus):
    def num_topics(method, seed):
        chosen = choose_documents(corpus, 12, method=method, seed=seed)
        return len({text.split()[0] for text in chosen})

    spread, drawn = (np.mean([num_topics(method, seed) for seed in range(5)]) for method in ("spread", "random"))
    assert spread > drawn + 1


@pytest.mark.parametrize("method", ["random", "spread"])
def test_a_small_corpus_is_taken_whole(method):
    assert choose_documents(["a", "b"], 5, method=method) == ["a", "b"]


def test_a_column_of_a_dataset_is_a_corpus(corpus):
    column = Dataset.from_dict({"text": corpus})["text"]
    assert choose_documents(column, 5, seed=1) == choose_documents(corpus, 5, seed=1)


def test_equal_documents_do_not_loop():
    assert choose_documents(["same words"] * 30, 4, method="spread") == ["same words"] * 4


def test_a_size_of_zero_is_refused(corpus):
    with pytest.raises(
        ValueError, match=r"`size` must be at least 1, got 0. For no context use `CorpusContext.null\(\)`"
    ):
        choose_documents(corpus, 0)


def test_an_unknown_method_is_refused(corpus):
    with pytest.raises(ValueError, match="must be `random` or `spread`, got `best`"):
        choose_documents(corpus, 5, method="best")
