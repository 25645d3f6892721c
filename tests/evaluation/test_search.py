"""Exact search and the checks of vectors."""

import numpy as np
import pytest

from cde_hf.evaluation.exact_search import search_vectors
from cde_hf.vectors import check_vectors


@pytest.mark.parametrize("block_size", [1, 7, 100, 1000])
def test_the_search_finds_what_a_full_sort_finds(block_size):
    generator = np.random.default_rng(0)
    queries, documents = generator.normal(size=(600, 8)), generator.normal(size=(300, 8))
    blocks = [documents[start : start + block_size] for start in range(0, len(documents), block_size)]
    ranking = search_vectors(queries, blocks, depth=20)
    scores = queries.astype(np.float32) @ documents.astype(np.float32).T
    np.testing.assert_array_equal(ranking.document_indices, np.argsort(-scores, axis=1)[:, :20])
    np.testing.assert_allclose(ranking.scores, -np.sort(-scores, axis=1)[:, :20], atol=1e-5)


def test_a_corpus_smaller_than_the_depth_is_ranked_whole():
    ranking = search_vectors(np.eye(2), [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])], depth=100)
    assert ranking.document_indices.tolist() == [[0, 1], [1, 0]]


def test_vectors_of_two_widths_are_refused():
    with pytest.raises(ValueError, match="vectors of the documents have 3 dimensions, .* with vectors of 2"):
        check_vectors(np.eye(3), "the documents", width=2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(value):
    vectors = np.zeros((3, 4))
    vectors[1, 2] = value
    with pytest.raises(ValueError, match="1 of the 3 vectors of the queries are not finite"):
        check_vectors(vectors, "the queries")


@pytest.mark.parametrize("vectors", [np.zeros((3, 2)), np.zeros(4), np.zeros((4, 2, 1))])
def test_there_must_be_a_row_for_each_text(vectors):
    with pytest.raises(ValueError, match=r"have the shape .*, expected \(4, dim\)"):
        check_vectors(vectors, "the queries", num_texts=4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_vectors_that_are_compared_by_the_cosine_are_unit_norm(scale):
    vectors = scale * np.random.default_rng(0).normal(size=(5, 4))
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(check_vectors(vectors, "the queries", is_cosine=True), expected, rtol=1e-5)
    np.testing.assert_allclose(check_vectors(vectors, "the queries"), vectors, rtol=1e-6)


def test_a_zero_vector_stays_zero():
    assert not check_vectors(np.zeros((1, 4)), "the queries", is_cosine=True).any()
