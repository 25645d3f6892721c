"""Queries that are held out of the training pairs."""

import pytest
from datasets import Dataset

from cde_hf.data import hold_out


PAIRS = Dataset.from_dict(
    {
        "query": [f"question {number // 2}" for number in range(40)],
        "document": [f"answer {number % 25}" for number in range(40)],
    }
)


def test_a_query_is_held_out_with_all_its_pairs():
    left, tested = hold_out(PAIRS, 5)
    assert len(tested.queries) == 5
    assert len(left) == 30
    assert not set(left["query"]) & set(tested.queries.values())
    assert all(len(grades) == 2 for grades in tested.qrels.values())


def test_the_pairs_that_are_left_keep_their_order():
    left, _ = hold_out(PAIRS, 5)
    assert left["query"] == sorted(left["query"], key=lambda query: int(query.split()[1]))


def test_held_out_queries_search_the_documents_of_all_pairs():
    _, tested = hold_out(PAIRS, 5)
    assert sorted(tested.corpus.values()) == sorted(set(PAIRS["document"]))


def test_held_out_queries_search_the_corpus_and_their_answers():
    _, tested = hold_out(PAIRS, 5, corpus=["something else", "answer 3 ", ""])
    answers = {PAIRS["document"][row] for row in range(40) if PAIRS["query"][row] in tested.queries.values()}
    assert set(tested.corpus.values()) == answers | {"something else", "answer 3"}


def test_a_large_corpus_is_sampled():
    _, tested = hold_out(PAIRS, 5, corpus=[f"document {number}" for number in range(5000)])
    assert len(tested.corpus) == 1000


def test_the_choice_follows_from_the_seed():
    chosen = [set(hold_out(PAIRS, 5, seed=seed)[1].queries.values()) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize("number", [0, 20])
def test_some_queries_must_be_left(number):
    with pytest.raises(ValueError, match="has 20 different queries, so between 1 and 19 of them can be held out"):
        hold_out(PAIRS, number)
