"""BM25."""

import math

import numpy as np
import pytest

from cde_hf.evaluation import BM25


def test_scores_are_those_of_the_formula():
    documents = ["red apple apple", "red car", "blue sky blue sea", "tree"]
    ranking = BM25().rank(["apple red"], documents, depth=4)
    lengths = [3, 2, 4, 1]
    counts = {"apple": [2, 0, 0, 0], "red": [1, 1, 0, 0]}
    expected = np.zeros(4)
    for word_counts in counts.values():
        containing = sum(count > 0 for count in word_counts)
        weight = math.log(1 + (4 - containing + 0.5) / (containing + 0.5))
        for index, count in enumerate(word_counts):
            expected[index] += weight * count / (count + 1.2 * (0.25 + 0.75 * lengths[index] / 2.5))
    assert ranking.document_indices.tolist() == [[0, 1, -1, -1]]
    np.testing.assert_allclose(ranking.scores[0, :2], expected[:2], rtol=1e-5)


def test_a_query_without_a_known_word_finds_nothing():
    ranking = BM25().rank(["zebra", "", "the", "a cat"], ["The cat sleeps.", "The dog barks."], depth=2)
    assert ranking.document_indices.tolist() == [[-1, -1], [-1, -1], [-1, -1], [0, -1]]


@pytest.mark.parametrize("documents", [["", ""], ["the", "of"]])
def test_a_corpus_without_words_finds_nothing(documents):
    assert BM25().rank(["cat"], documents, depth=5).document_indices.tolist() == [[-1, -1]]


def test_a_text_of_100000_words_is_ranked():
    ranking = BM25().rank(["cat"], ["cat " * 100_000, "cat", "dog"], depth=3)
    assert sorted(ranking.document_indices[0].tolist()) == [-1, 0, 1]
