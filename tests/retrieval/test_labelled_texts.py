"""Classification and clustering from vectors."""

import numpy as np
import pytest

from cde_hf.retrieval import classification_accuracy, clustering_v_measure


LABELS = ["cat", "dog", "owl"] * 40


def blobs(spread):
    """Vectors around a corner for each label of `LABELS`."""
    corners = {"cat": [1, 0, 0], "dog": [0, 1, 0], "owl": [0, 0, 1]}
    noise = np.random.default_rng(0).normal(scale=spread, size=(len(LABELS), 3))
    return np.array([corners[label] for label in LABELS]) + noise


def test_labels_that_lie_apart_are_found():
    vectors = blobs(0.05)
    assert classification_accuracy(vectors[:60], LABELS[:60], vectors[60:], LABELS[60:]).mean == 1
    assert clustering_v_measure(vectors, LABELS, draw_size=300).mean == pytest.approx(1)


def test_labels_without_a_pattern_are_guessed():
    vectors = np.random.default_rng(1).normal(size=(120, 3))
    accuracy = classification_accuracy(vectors[:60], LABELS[:60], vectors[60:], LABELS[60:])
    assert 0.2 < accuracy.mean < 0.5
    assert clustering_v_measure(vectors, LABELS, draw_size=300).mean < 0.1


def test_every_draw_has_its_score_and_the_seed_decides():
    vectors = blobs(0.5)
    arguments = (vectors[:60], LABELS[:60], vectors[60:], LABELS[60:])
    first, again, other = (classification_accuracy(*arguments, num_draws=4, seed=seed) for seed in (0, 0, 1))
    assert len(first.scores) == 4 and len(set(first.scores)) > 1
    assert first == again != other
    assert first.standard_deviation == pytest.approx(np.std(first.scores))
    assert clustering_v_measure(vectors, LABELS, seed=0) == clustering_v_measure(vectors, LABELS, seed=0)


def test_a_label_with_few_samples_gives_all_it_has():
    vectors, labels = blobs(0.05)[:7], LABELS[:7]
    assert classification_accuracy(vectors, labels, vectors, labels, samples_per_label=100).mean == 1


def test_one_label_is_refused():
    with pytest.raises(ValueError, match="at least two different labels, but the texts have 1"):
        clustering_v_measure(np.ones((3, 2)), ["cat"] * 3)


def test_vectors_and_labels_must_match():
    vectors = blobs(0.1)
    with pytest.raises(ValueError, match=r"the training texts have the shape \(120, 3\), expected \(60, dim\)"):
        classification_accuracy(vectors, LABELS[:60], vectors, LABELS)
    with pytest.raises(ValueError, match="the test texts have 2 dimensions"):
        classification_accuracy(vectors, LABELS, vectors[:, :2], LABELS)
