"""Whitening with a corpus' own vectors."""

import numpy as np
import pytest

from cde_hf.evaluation import SentenceTransformerEmbedder
from cde_hf.evaluation.whitening import WhitenedEmbedder, fit_whitening


CORPUS = ["The cat sleeps.", "A dog barks.", "Whales live in the sea.", "An owl hunts by night."]


@pytest.mark.parametrize("num_documents", [2, 5, 100])
def test_fewer_documents_than_dimensions_give_finite_unit_vectors(num_documents):
    vectors = np.random.default_rng(0).normal(size=(num_documents, 64))
    whitened = fit_whitening(vectors)(vectors)
    np.testing.assert_allclose(np.linalg.norm(whitened, axis=1), 1, atol=1e-5)


def test_the_covariance_of_the_whitened_documents_is_the_identity():
    vectors = np.random.default_rng(0).normal(size=(200, 4)) @ np.diag([1, 2, 3, 4]) + 7
    whitening = fit_whitening(vectors, shrinkage=1e-9)
    whitened = (vectors - whitening.mean) @ whitening.matrix
    np.testing.assert_allclose(np.cov(whitened, rowvar=False, bias=True), np.eye(4), atol=1e-4)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-4)


def test_full_shrinkage_only_centres():
    vectors = np.random.default_rng(0).normal(size=(50, 4)) + 3
    centred = vectors - vectors.mean(axis=0)
    expected = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(fit_whitening(vectors, shrinkage=1)(vectors), expected, atol=1e-5)


@pytest.mark.parametrize("shrinkage", [0, -0.1, 1.1])
def test_a_shrinkage_that_is_no_share_is_refused(shrinkage):
    with pytest.raises(ValueError, match="above 0 and at most 1, got"):
        fit_whitening(np.eye(3), shrinkage=shrinkage)


@pytest.mark.parametrize("vectors", [np.ones((1, 4)), np.ones((5, 4))])
def test_documents_that_are_all_the_same_are_refused(vectors):
    with pytest.raises(ValueError, match="at least two different documents, got . with the same vector"):
        fit_whitening(vectors)


def test_vectors_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="1 of the 2 vectors of the context documents are not finite"):
        fit_whitening(np.array([[0.0, 1.0], [np.nan, 1.0]]))


def test_the_embedder_whitens_queries_and_documents_with_its_context(minilm):
    plain = SentenceTransformerEmbedder(minilm, "plain")
    whitened = WhitenedEmbedder(plain)
    assert whitened.name == "plain, whitened"
    np.testing.assert_array_equal(whitened.embed_queries(CORPUS), plain.embed_queries(CORPUS))
    whitened.set_context(CORPUS)
    expected = fit_whitening(minilm.encode(CORPUS))(minilm.encode(["cat"]))
    np.testing.assert_allclose(whitened.embed_queries(["cat"]), expected, atol=1e-5)
    np.testing.assert_allclose(whitened.embed_documents(["cat"]), expected, atol=1e-5)
