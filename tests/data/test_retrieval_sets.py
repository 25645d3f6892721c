"""Retrieval sets and how pairs become one."""

import pytest
from datasets import Dataset

from cde_hf.data import RetrievalSet, retrieval_set_from_pairs


FIELDS = {"corpus": {"d": "A dog.", "c": "A cat."}, "queries": {"q": "Who barks?"}, "qrels": {"q": {"d": 1, "c": 0}}}


def test_every_distinct_text_stands_once_and_keeps_all_its_positives():
    pairs = {"query": ["a", "b", "a ", "a"], "document": ["x", "x", "y", " x"], "number": [1, 2, 3, 4]}
    assert retrieval_set_from_pairs("letters", Dataset.from_dict(pairs)) == RetrievalSet(
        "letters",
        corpus={"d0": "x", "d1": "y"},
        queries={"q0": "a", "q1": "b"},
        qrels={"q0": {"d0": 1, "d1": 1}, "q1": {"d0": 1}},
    )


def test_what_is_no_dataset_of_pairs_is_refused():
    with pytest.raises(ValueError, match=r"no column \['document'\]"):
        retrieval_set_from_pairs("letters", Dataset.from_dict({"query": ["a"]}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": {}, "qrels": {}}, "`pets` has no queries, but must have one .* Check its files"),
        (
            {"queries": {"q": "a", "r": "b"}},
            r"The queries \['r'\] of `pets` have a text or judgements, but must have both",
        ),
        (
            {"qrels": {"q": {"d": 1, "e": 1}}},
            r"query `q` of `pets` name the documents \['e'\], which its corpus lacks",
        ),
        (
            {"qrels": {"q": {"d": 0, "c": -1}}},
            "`q` of `pets` has no document with a grade above 0. Remove the query",
        ),
    ],
)
def test_a_set_that_does_not_fit_together_is_refused(change, message):
    RetrievalSet("pets", **FIELDS)
    with pytest.raises(ValueError, match=message):
        RetrievalSet("pets", **{**FIELDS, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"corpus": {"d": "x", "c": None}}, TypeError, "got `None` for document of `pets` `c`"),
        ({"queries": {"q": b"a"}}, TypeError, "got a `bytes` for query of `pets` `q`"),
        ({"queries": {"q": "half \ud83d"}}, ValueError, "Query of `pets` `q` has half of a character"),
    ],
)
def test_what_is_no_text_is_named(change, error, message):
    with pytest.raises(error, match=message):
        RetrievalSet("pets", **{**FIELDS, **change})
