"""Hybrid search as a system of an evaluation."""

import numpy as np
import pytest

from cde_hf import ContextualIndex, ContextualModelEmbedder, SentenceTransformerEmbedder, contextualize, evaluate
from cde_hf.evaluation import BM25, Hybrid, Row
from cde_hf.evaluation.systems import RememberingContextualEmbedder


QUERIES = ["where does the dog number 7 live", "cat 3", "zebra"]
CORPUS = {f"{name}{number}": f"The {name} number {number} lives." for name in ("cat", "dog") for number in range(80)}


class CountingEmbedder:
    """A contextual embedder whose vectors depend on the context, and who counts what it does."""

    name = "counting"

    def __init__(self):
        self.shift, self.calls = 0.0, []

    def set_context(self, documents):
        self.calls.append("context")
        self.shift = len(documents or ())

    def embed_queries(self, texts):
        self.calls.append("queries")
        return np.array([[len(text), text.count("a"), 1.0 + self.shift] for text in texts], dtype=np.float32)

    def embed_documents(self, texts):
        self.calls.append("documents")
        return np.array([[text.count("e"), len(text), 1.0 + self.shift] for text in texts], dtype=np.float32)


@pytest.mark.parametrize("contextual", [False, True])
def test_it_ranks_as_an_index_does(contextual, minilm, monkeypatch):
    monkeypatch.setattr("cde_hf.evaluation.bm25._DOCUMENTS_AT_ONCE", 30)
    texts = list(CORPUS.values())
    if contextual:
        embedder = ContextualModelEmbedder(contextualize(minilm, None), "minilm")
        embedder.set_context(texts)
        index = ContextualIndex.build(contextualize(minilm, texts), CORPUS)
    else:
        embedder, index = SentenceTransformerEmbedder(minilm, "minilm"), ContextualIndex.build(minilm, CORPUS)
    ranking = Hybrid(embedder, minilm.tokenizer).rank(QUERIES, texts, depth=5)
    found = index.search_batch(QUERIES, depth=5)
    np.testing.assert_allclose(ranking.scores, [[hit.score for hit in hits] for hits in found], atol=1e-4)
    expected = [[list(CORPUS)[row] for row in rows] for rows in ranking.document_indices]
    assert [hit.document_id for hit in found[0]][0] == expected[0][0] == "dog7"
    dense = index.search_batch(QUERIES, depth=5, hybrid=False)
    assert np.abs(ranking.scores - [[hit.score for hit in hits] for hits in dense])[:2].min() > 0.001


def test_a_contextual_hybrid_has_a_row_for_each_context(animals, fruits, minilm):
    plain = SentenceTransformerEmbedder(minilm, "minilm")
    systems = [Hybrid(plain, minilm.tokenizer), Hybrid(CountingEmbedder(), minilm.tokenizer, "mixed")]
    rows = evaluate(systems, [animals, fruits], contexts=("own", "none")).rows
    assert rows == [Row("minilm hybrid"), Row("mixed", "own"), Row("mixed", "none")]


def test_a_word_that_the_vectors_do_not_know_decides(animals, minilm):
    class Blind:
        name = "blind"

        def embed_queries(self, texts):
            return np.ones((len(texts), 2), dtype=np.float32)

        def embed_documents(self, texts):
            return np.array([[1.0, 0.1 * (row % 2)] for row in range(len(texts))], dtype=np.float32)

    evaluation = evaluate([BM25(minilm.tokenizer), Blind(), Hybrid(Blind(), minilm.tokenizer)], [animals])
    blind, hybrid = (evaluation.mean(Row(name)) for name in ("blind", "blind hybrid"))
    assert hybrid > blind


def test_rows_of_one_context_share_their_vectors(animals, minilm):
    counting = CountingEmbedder()
    remembering = RememberingContextualEmbedder(counting)
    shared = evaluate([remembering, Hybrid(remembering, minilm.tokenizer)], [animals], contexts=("own", "none"))
    # Two contexts, in each the queries, the documents and nothing more; the sample of a small set is all of it.
    assert counting.calls == 2 * ["context", "queries", "documents"]
    alone = CountingEmbedder()
    apart = evaluate([alone, Hybrid(alone, minilm.tokenizer)], [animals], contexts=("own", "none"))
    assert shared.scores == apart.scores and len(shared.rows) == 4
