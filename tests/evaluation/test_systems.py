"""What counts as a system, and sentence-transformers models as one."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cde_hf import contextualize
from cde_hf.evaluation import (
    BM25,
    ContextualEmbedder,
    ContextualModelEmbedder,
    Embedder,
    Hybrid,
    Ranker,
    SentenceTransformerEmbedder,
)
from cde_hf.evaluation.whitening import WhitenedEmbedder


def test_each_system_has_its_kind(minilm):
    plain = SentenceTransformerEmbedder(minilm, "plain")
    assert isinstance(plain, Embedder) and not isinstance(plain, ContextualEmbedder)
    for system in (WhitenedEmbedder(plain), ContextualModelEmbedder(contextualize(minilm, None), "frequency pooling")):
        assert isinstance(system, ContextualEmbedder) and not isinstance(system, Ranker)
    for system in (BM25(minilm.tokenizer), Hybrid(plain, minilm.tokenizer)):
        assert isinstance(system, Ranker) and not isinstance(system, Embedder)


def test_queries_and_documents_get_their_prompts(minilm):
    prompts = {"query": "query: ", "document": "passage: "}
    embedder = SentenceTransformerEmbedder(
        SentenceTransformer(modules=list(minilm.children()), device="cpu", prompts=prompts), "with prompts"
    )
    np.testing.assert_allclose(embedder.embed_queries(["cat"]), minilm.encode(["query: cat"]), atol=1e-6)
    np.testing.assert_allclose(embedder.embed_documents(["cat"]), minilm.encode(["passage: cat"]), atol=1e-6)


@pytest.mark.parametrize(("similarity", "is_unit"), [("cosine", True), ("dot", False)])
def test_vectors_have_length_one_if_the_model_compares_by_the_cosine(minilm, similarity, is_unit):
    model = SentenceTransformer(modules=list(minilm.children())[:2], device="cpu", similarity_fn_name=similarity)
    lengths = np.linalg.norm(SentenceTransformerEmbedder(model, "bare").embed_documents(["cat", "a dog"]), axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == is_unit


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        (None, TypeError, "must be texts, got `None` for query `1`"),
        (b"bytes", TypeError, "got a `bytes` for query `1`"),
        (["nested"], TypeError, "got a `list` for query `1`"),
        ("half \ud83d", ValueError, "Query `1` has half of a character"),
    ],
)
def test_a_query_that_is_no_text_is_named(minilm, query, error, message):
    with pytest.raises(error, match=message):
        SentenceTransformerEmbedder(minilm, "minilm").embed_queries(["fine", query])


def test_a_similarity_that_the_search_does_not_know_is_refused(minilm):
    model = SentenceTransformer(modules=list(minilm.children()), device="cpu", similarity_fn_name="euclidean")
    with pytest.raises(ValueError, match="similarity `euclidean`, but the search supports `cosine` and `dot`"):
        SentenceTransformerEmbedder(model, "far")
