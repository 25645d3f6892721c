"""An index beside its model alone: right numbers, and terms that make up the score."""

import numpy as np
import pytest

from cde_hf import ContextualIndex, contextualize, get_context
from cde_hf.contextual_models import with_context
from cde_hf.index import side_by_side
from cde_hf.index.side_by_side import SideBySide
from cde_hf.modeling import Context
from cde_hf.vectors import vector_origin


ANIMALS = ["cat", "dog", "owl", "whale", "wolf", "mouse"]
CORPUS = {
    f"{name} {number}": f"The {name} sleeps in house {number}." for name in ANIMALS for number in range(100, 120)
}
CORPUS |= {"cat 300": "A note: the cat snores loudly, all night.", "yak": "Nobody snores here but the yak."}
QUERIES = ["Who snores in house 107?", "Where does the owl sleep?"]


def model_of(kind, minilm):
    kinds = {
        "plain": lambda: minilm,
        "frequency pooling": lambda: contextualize(minilm, None, corpus_dim=0),
        "corpus part": lambda: contextualize(minilm, None),
    }
    return kinds[kind]()


@pytest.fixture(params=["plain", "frequency pooling", "corpus part"])
def index(request, minilm):
    return ContextualIndex.build(model_of(request.param, minilm), CORPUS)


def test_the_right_column_is_what_the_model_alone_finds(index, minilm):
    vectors, moved = minilm.encode_document(list(CORPUS.values()), normalize_embeddings=True), []
    for query in QUERIES:
        hits, plain_hits = SideBySide(index).search(query, depth=10)
        cosines = vectors @ minilm.encode_query(query, normalize_embeddings=True)
        best = np.argsort(-cosines)
        np.testing.assert_allclose([hit.score for hit in plain_hits], cosines[best[:10]], atol=1e-5)
        assert [each.hit for each in hits] == index.search(query, depth=10)
        ranks = {name: rank for rank, name in enumerate(np.array(list(CORPUS))[best], start=1)}
        near = [each for each in hits if ranks[each.hit.document_id] <= 20]  # no ties there
        assert near and all(abs(each.plain_rank - ranks[each.hit.document_id]) <= 2 for each in near)
        moved += [each for rank, each in enumerate(hits, start=1) if each.plain_rank != rank]
    assert moved


def test_the_terms_and_the_dense_part_are_the_score(index, minilm):
    context = get_context(index.model)
    weight = 0.0 if context is None or context.terms is None else context.terms.weight
    pooled = minilm
    if context is not None:
        model = contextualize(minilm, None, corpus_dim=0)
        pooled = with_context(model, Context(token_frequencies=context.token_frequencies))
    for query in QUERIES:
        hits, _ = SideBySide(index).search(query, depth=10)
        texts = [each.hit.text for each in hits]
        dense = pooled.encode_document(texts, normalize_embeddings=True) @ pooled.encode_query(
            query, normalize_embeddings=True
        )
        sums = [sum(each.terms.values()) for each in hits]
        scores = [each.hit.score for each in hits]
        np.testing.assert_allclose(dense / (1 + weight) + sums, scores, atol=2e-3)
        assert max(sums) > 0.01
    assert next(iter(hits[0].terms)) == "owl"


def test_pieces_of_a_word_are_shown_as_the_word(minilm):
    index = ContextualIndex.build(minilm, {"a": "The radiator gurgles.", "b": "The owl flies.", "c": "A dog barks."})
    hits, _ = SideBySide(index).search("Radiator gurgles?", depth=1)
    assert len(minilm.tokenizer.tokenize("Radiator gurgles")) > 4
    assert set(hits[0].terms) == {"Radiator", "gurgles"}


def test_changed_texts_and_new_documents_show_at_once(minilm, tmp_path):
    model = contextualize(minilm, None)
    for words in ("The cat snores.", "The cat eats fish."):
        index = ContextualIndex.build(model, {"cat": words, "dog": "The dog runs.", "owl": "The owl flies."})
        index.save(tmp_path / "index")
        both = SideBySide(ContextualIndex.load(tmp_path / "index", minilm))
        hits, plain_hits = both.search(words, depth=1)
        assert [hits[0].hit.text, plain_hits[0].text] == [words, words]
        assert plain_hits[0].score == pytest.approx(1, abs=1e-5)
    both.index.add({"yak": "The yak digs."})
    assert both.search("yak digs", depth=4)[1][0].document_id == "yak"
    assert {path.name for path in tmp_path.iterdir()} == {"index"}


def test_candidates_are_few(minilm, monkeypatch):
    monkeypatch.setattr(side_by_side, "NUM_CANDIDATES", 12)
    index = ContextualIndex.build(minilm, CORPUS)
    both = SideBySide(index)
    encoded = []
    monkeypatch.setattr(
        both._plain, "embed_documents", lambda texts: encoded.extend(texts) or minilm.encode_document(texts)
    )
    _, plain_hits = both.search(QUERIES[0], depth=5)
    assert len(encoded) <= 24 and len(set(encoded)) == len(encoded)
    dense = index.search(QUERIES[0], depth=5, hybrid=False)
    assert [hit.document_id for hit in plain_hits] == [hit.document_id for hit in dense]


def test_vectors_without_texts_are_refused(minilm):
    vectors = minilm.encode_document(["a cat", "a dog"])
    index = ContextualIndex.from_vectors(minilm, ["a", "b"], vectors, origin=vector_origin(minilm))
    with pytest.raises(ValueError, match="vectors without texts, so its model alone cannot be shown. Build the index"):
        SideBySide(index).search("cat", depth=1)
