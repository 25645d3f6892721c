"""BM25, against the package bm25s."""

import bm25s
import numpy as np
import pytest

from cde_hf.evaluation import BM25
from cde_hf.evaluation.bm25 import Postings, query_terms
from cde_hf.modeling.term_vectors import count_documents


DOCUMENTS = [
    "Red apples, and more red apples!",
    "The red car is red.",
    "A blue sky over the blue sea.",
    "Trees have apples.",
    "Unbelievably unbelievable.",
]
QUERIES = ["red apples", "the sea", "Unbelievable apples, apples, apples?", "what is this"]


def reference_scores(tokenizer, queries, documents):
    """Scores by bm25s of whole texts, cut into the same tokens, in which a query has each token once."""

    def split(texts):
        return [tokenizer.tokenize(text) for text in texts]

    index = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    index.index(split(documents), show_progress=False)
    known = index.vocab_dict
    return np.stack(
        [index.get_scores(list({token for token in tokens if token in known})) for tokens in split(queries)]
    )


@pytest.fixture
def tokenizer(minilm):
    return minilm.tokenizer


def test_scores_are_those_of_bm25s(tokenizer):
    expected = 2.2 * reference_scores(tokenizer, QUERIES, DOCUMENTS)  # bm25s leaves out the constant factor k1 + 1
    ranking = BM25(tokenizer).rank(QUERIES, DOCUMENTS, depth=5)
    scores = np.zeros_like(expected)
    for row, (numbers, values) in enumerate(zip(ranking.document_indices, ranking.scores, strict=True)):
        scores[row, numbers[numbers >= 0]] = values[numbers >= 0]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert (expected > 0).any(axis=1).all() and len(np.unique(expected)) > 8


def test_documents_are_ranked_across_blocks(tokenizer, monkeypatch):
    whole = BM25(tokenizer).rank(QUERIES, DOCUMENTS, depth=3)
    monkeypatch.setattr("cde_hf.evaluation.bm25._DOCUMENTS_AT_ONCE", 2)
    parts = BM25(tokenizer).rank(QUERIES, DOCUMENTS, depth=3)
    np.testing.assert_array_equal(parts.document_indices, whole.document_indices)
    np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-6)


def test_no_score_is_above_the_bound_of_its_query(tokenizer):
    postings = Postings.of(count_documents(tokenizer, [*DOCUMENTS, "red " * 1000]))
    (term_ids,) = query_terms(tokenizer, ["red"])
    bound = postings.statistics.bound(term_ids)
    assert 0.9 * bound < postings.scores(term_ids, postings.statistics).max() < bound


def test_every_token_counts_and_there_are_no_stop_words(tokenizer):
    ranking = BM25(tokenizer).rank(["zebra", "", "the", "a cat"], ["The cat sleeps.", "Dogs bark."], depth=2)
    assert ranking.document_indices.tolist() == [[-1, -1], [-1, -1], [0, -1], [0, -1]]


@pytest.mark.parametrize("documents", [["", ""], [" ", "\n"]])
def test_a_corpus_without_tokens_finds_nothing(tokenizer, documents):
    assert BM25(tokenizer).rank(["cat"], documents, depth=5).document_indices.tolist() == [[-1, -1]]


def test_empty_documents_do_not_count(tokenizer):
    few = BM25(tokenizer).rank(QUERIES, DOCUMENTS, depth=2)
    many = BM25(tokenizer).rank(QUERIES, [*DOCUMENTS, "", ""], depth=2)
    np.testing.assert_allclose(many.scores, few.scores, rtol=1e-6)


def test_a_text_of_100000_words_is_ranked(tokenizer):
    ranking = BM25(tokenizer).rank(["cat"], ["cat " * 100_000, "cat", "dog"], depth=3)
    assert sorted(ranking.document_indices[0].tolist()) == [-1, 0, 1]
