"""The filter against a loop over all pairs of a batch."""

import numpy as np
import pytest
from datasets import Dataset

from cde_hf.batching import (
    BatchPlan,
    ClusteredBatchSampler,
    FalseNegativeFilter,
    TfidfSurrogate,
    batch_statistics,
    prepare_batch_plan,
    surrogate_scores,
)


ROWS = [3, 0, 7, 2, 5, 11]


@pytest.fixture(scope="module")
def negative_plan(tmp_path_factory):
    """A plan whose pairs have 0 to 2 hard negatives, some texts twice."""
    words = [f"word{number}" for number in range(40)]
    generator = np.random.default_rng(0)
    text = lambda: " ".join(generator.choice(words, 8))  # noqa: E731
    rows = [{"query": text(), "document": text(), "negatives": [text() for _ in range(n % 3)]} for n in range(40)]
    rows[0]["query"] = rows[3]["query"]
    rows[7]["document"] = rows[2]["document"]
    rows[5]["negatives"][0] = rows[11]["document"]
    folder = tmp_path_factory.mktemp("plans") / "negatives"
    plan = prepare_batch_plan(Dataset.from_list(rows), folder, surrogate=TfidfSurrogate(dim=8), cluster_size=20)
    return rows, plan


def brute_force(rows, plan, chosen, is_above):
    """`True` where a document must not count, one decision at a time."""
    documents = [(row, None) for row in chosen] + [(r, i) for r in chosen for i in range(len(rows[r]["negatives"]))]
    starts = np.cumsum([0] + [len(row["negatives"]) for row in rows])
    expected = np.zeros((len(chosen), len(documents)), dtype=bool)
    for i, query_row in enumerate(chosen):
        query = plan.filter_queries[query_row].astype(np.float32)
        positive = query @ plan.filter_documents[query_row].astype(np.float32)
        for j, (row, negative) in enumerate(documents):
            if negative is None:
                vector, text = plan.filter_documents[row], rows[row]["document"]
            else:
                vector, text = plan.filter_negatives[starts[row] + negative], rows[row]["negatives"][negative]
            is_positive = negative is None and row == query_row
            answers = {rows[r]["document"] for r in chosen if rows[r]["query"] == rows[query_row]["query"]}
            score = query @ vector.astype(np.float32)
            expected[i, j] = not is_positive and (text in answers or is_above(score, positive))
    return expected


@pytest.mark.parametrize(
    ("options", "is_above"),
    [
        ({}, lambda score, positive: score >= positive),
        ({"margin": 0.2}, lambda score, positive: score >= positive + 0.2),
        ({"margin": -0.1}, lambda score, positive: score >= positive - 0.1),
        ({"relative_margin": -0.05}, lambda score, positive: score >= positive - 0.05 * abs(positive)),
        ({"margin": np.inf}, lambda score, positive: False),
    ],
)
def test_equals_a_decision_per_document(negative_plan, options, is_above):
    rows, plan = negative_plan
    _, result = FalseNegativeFilter(plan, **options)(ROWS)
    expected = brute_force(rows, plan, ROWS, is_above)
    assert expected.any() and not expected.all()
    np.testing.assert_array_equal(result, expected)


def test_equal_texts_are_filtered_without_any_score(negative_plan):
    _, plan = negative_plan
    _, filtered = FalseNegativeFilter(plan, margin=np.inf)(ROWS)
    positions = {row: place for place, row in enumerate(ROWS)}
    assert filtered[positions[7], positions[2]] and filtered[positions[2], positions[7]]
    assert filtered[positions[0], positions[3]] and filtered[positions[3], positions[0]]


def test_an_answer_to_an_equal_query_is_filtered_wherever_it_stands(tmp_path):
    texts = [("which pet", "a cat"), ("which pet", "a dog"), ("who barks", "a dog"), ("what swims", "a whale here")]
    rows = [{"query": q, "document": d, "negatives": ["a dog"] if n == 3 else []} for n, (q, d) in enumerate(texts)]
    plan = prepare_batch_plan(
        Dataset.from_list(rows), tmp_path / "plan", surrogate=TfidfSurrogate(dim=2), cluster_size=4
    )
    _, filtered = FalseNegativeFilter(plan, margin=np.inf)([0, 1, 2, 3])
    assert filtered[0].tolist() == [False, True, True, False, True]
    assert filtered[3].tolist() == [False, False, False, False, False]


def test_an_answer_that_only_another_batch_names_is_filtered_too(tmp_path):
    texts = [("which pet", "a cat"), ("which pet", "a dog"), ("who barks", "a dog"), ("what swims", "a whale here")]
    pairs = Dataset.from_list([{"query": query, "document": document} for query, document in texts])
    plan = prepare_batch_plan(pairs, tmp_path / "plan", surrogate=TfidfSurrogate(dim=2), cluster_size=4)
    known = FalseNegativeFilter(plan).known_answers([0, 2, 3])  # without the row that says so
    assert known.tolist() == [[False, True, False], [False, False, False], [False, False, False]]


def test_unknown_words_are_not_filtered_by_score(tmp_path):
    rows = [{"query": f"q{n} known words", "document": f"d{n} known words and more {n}"} for n in range(8)]
    rows[0] = {"query": "\u732b \u72ac", "document": "\u9ce5"}  # single characters are no words to TF-IDF
    plan = prepare_batch_plan(
        Dataset.from_list(rows), tmp_path / "plan", surrogate=TfidfSurrogate(dim=3), cluster_size=8
    )
    assert not plan.filter_queries[0].any()
    _, filtered = FalseNegativeFilter(plan)(range(8))
    assert not filtered[0].any()


def test_the_positive_is_never_filtered(plan):
    _, filtered = FalseNegativeFilter(plan, margin=-2.0)(ROWS)
    assert not np.diagonal(filtered).any()
    assert filtered.sum() == 30


def test_scores_are_one_matrix_product(plan):
    scores = surrogate_scores(plan, np.array(ROWS))
    expected = plan.filter_queries[ROWS].astype(np.float32) @ plan.filter_documents[ROWS].astype(np.float32).T
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_array_equal(FalseNegativeFilter(plan)(ROWS)[0], scores)


@pytest.mark.parametrize("name", ["filter_queries", "filter_documents", "filter_negatives", "negative_hashes"])
def test_the_filter_reads_an_array_once(negative_plan, name, monkeypatch):
    _, plan = negative_plan
    array, reads = getattr(plan, name), []
    monkeypatch.setattr(BatchPlan, name, property(lambda plan: reads.append(name) or array))
    scores, is_false = FalseNegativeFilter(plan)(ROWS)
    assert scores.shape == is_false.shape
    assert reads == [name]


def test_statistics_score_a_batch_once(plan, monkeypatch):
    array, reads = plan.filter_queries, []
    monkeypatch.setattr(BatchPlan, "filter_queries", property(lambda plan: reads.append(plan) or array))
    batch_statistics(plan, 16)
    assert len(reads) == min(50, len(ClusteredBatchSampler(plan, 16)))


def test_the_filter_has_its_own_surrogate_if_asked(pairs, tmp_path):
    plan = prepare_batch_plan(
        pairs,
        tmp_path / "plan",
        surrogate=TfidfSurrogate(dim=16),
        filter_surrogate=TfidfSurrogate(dim=12),
        cluster_size=30,
    )
    assert plan.filter_queries.shape == (240, 12)
    assert plan.centroids.shape[1] == 32
