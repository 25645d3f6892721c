"""Scores of rankings, held to formulas written out here."""

import math

import numpy as np
import pytest

from cde_hf.data.retrieval_sets import RetrievalSet
from cde_hf.evaluation.exact_search import Ranking
from cde_hf.evaluation.metrics import METRICS, score_ranking


def brute_force(ranked, grades):
    """NDCG@10, MRR@10 and recall@100 of one query: its ranked documents and the grades of the judged ones."""
    gains = [grades.get(document, 0) for document in ranked[:10]]
    ideal = sorted(grades.values(), reverse=True)[:10]
    dcg, ideal_dcg = (sum(g / math.log2(rank + 2) for rank, g in enumerate(values)) for values in (gains, ideal))
    first = next((rank for rank, gain in enumerate(gains) if gain > 0), None)
    positives = {document for document, grade in grades.items() if grade > 0}
    return {
        "ndcg@10": dcg / ideal_dcg,
        "mrr@10": 0.0 if first is None else 1 / (first + 1),
        "recall@100": len(positives & set(ranked[:100])) / len(positives),
    }


@pytest.fixture
def random_set():
    generator = np.random.default_rng(3)
    corpus = {f"d{number}": f"text {number}" for number in range(300)}
    qrels = {}
    for number in range(40):
        judged = generator.choice(300, size=30, replace=False)
        qrels[f"q{number}"] = {f"d{index}": int(generator.integers(0, 4)) for index in judged}
    return RetrievalSet("random", corpus, dict.fromkeys(qrels, "text"), qrels)


def test_all_metrics_equal_their_formulas(random_set):
    scores = np.random.default_rng(4).normal(size=(40, 300))
    order = np.argsort(-scores, axis=1)[:, :100]
    ranking = Ranking(order, np.take_along_axis(scores, order, axis=1))
    results = score_ranking(ranking, random_set)
    assert tuple(results) == METRICS
    for row, query in enumerate(random_set.queries):
        expected = brute_force([f"d{index}" for index in order[row]], random_set.qrels[query])
        assert {metric: results[metric][query] for metric in METRICS} == pytest.approx(expected)
    assert 0 < np.mean(list(results["mrr@10"].values())) < 1


def test_a_query_that_finds_nothing_scores_zero(animals):
    indices = np.array([[0, -1], [-1, -1], [0, 3]])
    results = score_ranking(Ranking(indices, np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 1.0]])), animals)
    assert results["mrr@10"] == {"q1": 1.0, "q2": 0.0, "q3": 0.5}
    assert results["recall@100"] == {"q1": 1.0, "q2": 0.0, "q3": 1.0}


def test_a_relevant_document_on_rank_11_counts_for_recall_alone():
    corpus = {f"d{number:02}": "text" for number in range(12)}
    retrieval_set = RetrievalSet("one", corpus, {"q": "text"}, {"q": {"d10": 1}})
    results = score_ranking(Ranking(np.arange(12)[None], -np.arange(12.0)[None]), retrieval_set)
    assert [results[metric]["q"] for metric in METRICS] == [0.0, 0.0, 1.0]


def test_all_metrics_break_ties_alike():
    corpus = {f"d{number:02}": "text" for number in range(12)}
    retrieval_set = RetrievalSet("tied", corpus, {"q": "text"}, {"q": {"d11": 1}})
    results = score_ranking(Ranking(np.arange(12)[None], np.ones((1, 12))), retrieval_set)
    assert results["ndcg@10"] == {"q": 1.0} and results["mrr@10"] == {"q": 1.0}  # trec_eval: the last id first
