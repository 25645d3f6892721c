"""The experiment on the corpus part: it scores what the package computes, and its sentences follow from its table."""

import numpy as np
import pytest

from cde_hf import RetrievalSet, contextualize, get_context
from experiments import corpus_part
from experiments.corpus_part import DIMENSIONS, FOREIGN, OWN, PLAIN, WEIGHT_PER_SPREAD, EncodedSet, make_fit, spread


ANIMALS = ("cat", "dog", "owl", "whale", "wolf", "mouse", "horse", "bear")


@pytest.fixture(scope="module")
def zoo():
    corpus = {f"{a}{i}": f"The {a} sleeps in house {i} of the zoo." for a in ANIMALS for i in range(4)}
    queries = {a: f"Where does the {a} sleep?" for a in ANIMALS}
    return RetrievalSet("zoo", corpus, queries, {a: {f"{a}{i}": 1 for i in range(4)} for a in ANIMALS})


def test_the_experiment_scores_what_the_package_computes(minilm, zoo):
    encoded, whole = EncodedSet(minilm, zoo), len(zoo.corpus)
    queries, documents = encoded.dense(zoo, whole, 0)
    terms = make_fit(minilm)(zoo, whole, 0)
    part = encoded.queries.part(terms) @ encoded.documents.part(terms).T
    weight = WEIGHT_PER_SPREAD * spread(documents)
    model = contextualize(minilm, zoo.corpus, corpus_dim=DIMENSIONS)
    assert get_context(model).terms.weight == pytest.approx(weight, rel=1e-2)
    expected = model.encode_query(list(zoo.queries.values())) @ model.encode_document(list(zoo.corpus.values())).T
    np.testing.assert_allclose((queries @ documents.T + weight * part) / (1 + weight), expected, atol=5e-3)


def make_rows(gains):
    """Rows of tests against the plain encoder, from a gain and a p-value by set."""
    tests = [{"set": name, "ndcg@10": gain, "p": p} for name, (gain, p) in gains.items()]
    return [{"encoder": "e", "part": "own above", "way": PLAIN, **row} for row in tests]


def test_sets_are_judged_by_holms_procedure():
    rows = make_rows({"a": (3.0, 0.001), "b": (-2.0, 0.02), "c": (1.0, 0.2), "mean": (0.7, 0.001)})
    assert "better than plain (Holm, p < 0.05) on 1 sets, worse on 1: b" in corpus_part.worse_sentence(rows)
    rows = make_rows({"a": (3.0, 0.001), "b": (-2.0, 0.03), "c": (1.0, 0.04)})
    assert "on 1 sets, worse on 0." in corpus_part.worse_sentence(rows)


def test_own_is_tested_against_other_ways():
    ways = dict.fromkeys((PLAIN, FOREIGN, corpus_part.POOLED, corpus_part.HYBRID), {"zoo": {"q1": 0.2, "q2": 0.4}})
    own, hybrid = {"zoo": {"q1": 0.3, "q2": 0.5}}, {"zoo": {"q1": 0.4, "q2": 0.6}}
    rows = corpus_part.significance_rows("e", {**ways, OWN: own, corpus_part.HYBRID_OWN: hybrid})
    above = {row["way"]: row["ndcg@10"] for row in rows if row["part"] == "hybrid above"}
    assert above == {corpus_part.HYBRID: pytest.approx(20.0), OWN: pytest.approx(10.0)}
    rows = [row for row in rows if row["part"] == "own above"]
    assert {row["set"] for row in rows} == {"zoo", "mean"}
    assert all(row["ndcg@10"] == pytest.approx(10.0) for row in rows)
