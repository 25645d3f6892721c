"""Hybrid search of an index: cosines and BM25, exact or of candidates, while documents come and go."""

import bm25s
import numpy as np
import pytest

from cde_hf import ContextualIndex
from cde_hf.evaluation.hybrid import HYBRID_WEIGHT
from cde_hf.modeling.corpus_part import NUM_CALIBRATION_DOCUMENTS
from cde_hf.vectors import vector_origin


ANIMALS = ["cat", "dog", "whale", "owl", "horse", "frog", "bear", "wolf"]
PLACES = ["in the old house", "by the sea", "under a tree at night"]
CORPUS = {
    f"{animal} {number}": f"The {animal} sleeps {place}." + " It eats fish." * number
    for animal in ANIMALS
    for number, place in enumerate(PLACES)
}
QUERIES = ["Where does the frog sleep?", "fish of the sea", "zebra", "old trees, old houses"]
KINDS = ["flat", "hnsw", "ivf"]


def expected_scores(model, corpus, queries):
    """Scores by the model and bm25s alone, of shape `(num_queries, num_documents)`."""

    def split(texts):
        return [model.tokenizer.tokenize(text) for text in texts]

    documents = model.encode_document(list(corpus.values()), normalize_embeddings=True)
    assert len(documents) <= NUM_CALIBRATION_DOCUMENTS
    spread = np.std([documents[i] @ documents[j] for i in range(len(documents)) for j in range(i)])
    bm25 = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    bm25.index(split(corpus.values()), show_progress=False)
    counts = {token: sum(token in tokens for tokens in split(corpus.values())) for token in bm25.vocab_dict}
    rows = []
    for query, tokens in zip(model.encode_query(queries, normalize_embeddings=True), split(queries), strict=True):
        distinct = set(tokens)
        containing = np.array([counts.get(token, 0) for token in distinct])
        bound = np.log(1 + (len(corpus) - containing + 0.5) / (containing + 0.5)).sum()
        words = bm25.get_scores(list(distinct & counts.keys())) if distinct & counts.keys() else 0
        rows.append(documents @ query + HYBRID_WEIGHT * spread * words / bound)
    return np.stack(rows)


def scores_of(index, queries=QUERIES, **options):
    """The score of each document, by its id, for each query."""
    return [{hit.document_id: hit.score for hit in hits} for hits in index.search_batch(queries, depth=500, **options)]


def assert_close(first, second):
    for mine, other in zip(first, second, strict=True):
        assert mine.keys() == other.keys()
        np.testing.assert_allclose([mine[name] for name in other], list(other.values()), atol=2e-5)


@pytest.fixture
def index(minilm):
    return ContextualIndex.build(minilm, CORPUS)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_cosines_and_bm25(minilm, kind):
    index = ContextualIndex.build(minilm, CORPUS, kind=kind)
    expected = expected_scores(minilm, CORPUS, QUERIES)
    assert_close(scores_of(index), [dict(zip(CORPUS, row, strict=True)) for row in expected.tolist()])
    best = [[hit.document_id for hit in hits] for hits in index.search_batch(QUERIES, depth=3)]
    assert best == [[list(CORPUS)[row] for row in np.argsort(-each)[:3]] for each in expected]
    assert [list(scores) for scores in scores_of(index)] != [list(scores) for scores in scores_of(index, hybrid=False)]


def test_queries_are_searched_in_blocks(index, monkeypatch):
    whole = scores_of(index)
    monkeypatch.setattr("cde_hf.index.state._SCORES_AT_ONCE", 2 * len(CORPUS))
    assert_close(scores_of(index), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_that_only_its_words_find_is_among_the_candidates(minilm, kind, monkeypatch):
    monkeypatch.setattr("cde_hf.index.nearest._HYBRID_CANDIDATES", 2)
    codes = {f"code {number}": f"Part number {number} of the machine." for number in range(1000, 1300)}
    index = ContextualIndex.build(minilm, codes, kind=kind)
    assert index.search("machine 1207", depth=1)[0].document_id == "code 1207"


@pytest.mark.parametrize("kind", KINDS)
def test_new_documents_use_the_last_fit_until_there_are_many(minilm, kind):
    index = ContextualIndex.build(minilm, CORPUS, kind=kind)
    before = scores_of(index)
    new = {"zebra": "The zebra sleeps by the sea.", "yak": "The yak eats fish, fish and fish."}
    index.add(new)
    few = scores_of(index)
    assert index.search("zebra", depth=1)[0].document_id == "zebra"
    assert_close([{name: scores[name] for name in CORPUS} for scores in few], before)
    more = {"emu": "The emu eats an old tree."}
    index.add(more)  # more than a tenth
    assert_close(scores_of(index), scores_of(ContextualIndex.build(minilm, CORPUS | new | more)))
    assert abs(scores_of(index)[2]["zebra"] - few[2]["zebra"]) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_deleted_documents_are_gone_at_once_and_saving_fits_the_rest(minilm, kind, tmp_path):
    index = ContextualIndex.build(minilm, CORPUS, kind=kind)
    before = scores_of(index)
    gone = ["frog 0", "frog 1", "owl 2"]
    index.delete(gone)
    left = {name: text for name, text in CORPUS.items() if name not in gone}
    assert_close(scores_of(index), [{name: scores[name] for name in left} for scores in before])
    index.add({"yak": "The yak eats fish, fish and fish."})
    index.save(tmp_path / "index")
    fresh = ContextualIndex.build(minilm, left | {"yak": "The yak eats fish, fish and fish."})
    for each in (index, ContextualIndex.load(tmp_path / "index", minilm)):
        assert_close(scores_of(each), scores_of(fresh))
    index.delete(list(left)[:20])  # more than half, so everything moves to a new base
    rest = {name: text for name, text in CORPUS.items() if name in list(left)[20:]}
    assert_close(scores_of(index), scores_of(ContextualIndex.build(minilm, rest | {"yak": fresh.texts[-1]})))


def test_an_opened_index_changes_like_a_new_one(minilm, tmp_path):
    index = ContextualIndex.build(minilm, CORPUS)
    index.save(tmp_path / "index")
    opened = ContextualIndex.load(tmp_path / "index", minilm)
    assert isinstance(opened._state.terms.postings.counts.base, np.memmap)
    for each in (index, opened):
        each.add({"yak": "The yak eats fish."})
        each.delete(["frog 0"])
    assert_close(scores_of(opened), scores_of(index))


def test_vectors_without_texts_are_searched_by_vectors_alone(minilm):
    origin = vector_origin(minilm)
    vectors = minilm.encode_document(list(CORPUS.values()), normalize_embeddings=True)
    index = ContextualIndex.from_vectors(minilm, list(CORPUS), vectors, origin=origin)
    assert_close(scores_of(index), scores_of(index, hybrid=False))
    with pytest.raises(ValueError, match="needs the texts of the documents, but this index has vectors alone. Build"):
        index.search(QUERIES[0], hybrid=True)
    # The first text brings terms.
    index.add({"yak": "The yak eats fish."})
    scores, dense = scores_of(index, ["fish"]), scores_of(index, ["fish"], hybrid=False)
    assert scores[0]["yak"] > dense[0]["yak"] + 0.01 and scores[0]["cat 0"] == pytest.approx(dense[0]["cat 0"])


def test_a_query_without_terms_is_searched_by_its_vector(index):
    assert_close(scores_of(index, [" "]), scores_of(index, [" "], hybrid=False))
