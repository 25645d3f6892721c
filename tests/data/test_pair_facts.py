"""What a set of pairs looks like."""

import pytest
from datasets import Dataset

from cde_hf.data import PairFacts


def pairs(*rows):
    return Dataset.from_dict({"query": [row[0] for row in rows], "document": [row[1] for row in rows]})


def test_texts_are_counted_without_white_space():
    facts = PairFacts.of(pairs(("a", "x"), ("a ", "y"), ("b", "y"), ("c", "z")))
    assert facts == PairFacts(num_pairs=4, num_queries=3, num_documents=3, num_with_several_answers=1)
    assert str(facts).startswith("4 pairs: 3 different queries, 1 of them with several answers")


def test_many_queries_with_several_answers_are_noticed():
    assert PairFacts.of(pairs(("a", "x"), ("a", "y"), ("b", "z"))).has_many_answers
    assert not PairFacts.of(pairs(("a", "x"), ("c", "y"), ("b", "z"))).has_many_answers


@pytest.mark.parametrize("rows", [[("a", "x")] * 3, [("a", "x"), ("a", "y")], [("a", "x"), ("b", "x")]])
def test_pairs_that_are_all_alike_are_refused(rows):
    with pytest.raises(ValueError, match="A model learns by telling pairs apart: give pairs with different texts"):
        PairFacts.of(pairs(*rows))
