"""The state of an index: exact search, documents that come and go, and the disk keeps them."""

import faiss
import numpy as np
import pytest

from cde_hf.index.state import IndexState
from cde_hf.index.storage import read_index, write_index


KINDS = ["flat", "hnsw", "ivf"]


@pytest.fixture
def vectors():
    vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    faiss.normalize_L2(vectors)
    return vectors


def names(numbers):
    return [f"d{number}" for number in numbers]


def build(vectors, kind="flat"):
    return IndexState.build(vectors, names(range(len(vectors))), [None] * len(vectors), kind)


def found(state, query_vectors, depth):
    return [[hit.document_id for hit in hits] for hits in state.search(query_vectors, depth)]


@pytest.mark.parametrize("num_queries", [1, 64, 600])
def test_exact_search_gives_the_numbers_of_faiss(vectors, num_queries):
    bare = faiss.IndexFlatIP(16)
    bare.add(vectors)
    queries = np.ascontiguousarray(vectors[:num_queries, ::-1])
    scores, numbers = bare.search(queries, 10)
    hits = build(vectors).search(queries, 10)
    np.testing.assert_allclose([[hit.score for hit in each] for each in hits], scores, rtol=0, atol=1e-6)
    assert [[hit.document_id for hit in each] for each in hits] == [names(each) for each in numbers]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_are_added_bit_by_bit_are_found(vectors, kind):
    state = build(vectors[:400], kind)
    for start in range(400, 600, 25):
        state = state.with_documents(names(range(start, start + 25)), vectors[start : start + 25], [None] * 25)
    for _ in range(2):
        np.testing.assert_array_equal(state.vectors(), vectors)
        assert state.column("id") == names(range(600))
        is_found = [ids == [name] for ids, name in zip(found(state, vectors, 1), names(range(600)), strict=True)]
        assert np.mean(is_found) > 0.98
        state = state.rebased()
        assert len(state.base) == 600 and len(state.added) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_without_documents_finds_nothing(vectors, kind):
    state = build(vectors, kind).without(names(range(600)))
    assert len(state) == 0 and found(state, vectors[:2], 3) == [[], []]
    assert state.vectors().shape == (0, 16)
    state = state.with_documents(["seven", "eight"], vectors[7:9], ["7", "8"])
    hit = state.search(vectors[8:9], 1)[0][0]
    assert (hit.document_id, hit.text) == ("eight", "8")


@pytest.mark.parametrize("kind", KINDS)
def test_removed_documents_are_skipped_and_their_ids_can_be_used_again(vectors, kind):
    state = build(vectors, kind).without(["d5", "d5", "d6"])
    assert len(state) == 598 and "d5" not in state and "d7" in state
    assert not {"d5", "d6"} & {name for ids in found(state, vectors[5:7], 600) for name in ids}
    state = state.with_documents(["d5"], vectors[5:6], [None])
    for _ in range(2):
        assert found(state, vectors[5:6], 1) == [["d5"]] and len(state) == 599
        assert state.column("id") == names([*range(5), *range(7, 600), 5])
        np.testing.assert_array_equal(state.vectors(), np.concatenate([vectors[:5], vectors[7:], vectors[5:6]]))
        state = state.rebased()
    state = state.without(["d7", "d5"])
    assert found(state, vectors[8:9], 1) == [["d8"]] and len(state) == 597


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_state_stays_as_it_was(vectors, kind):
    old = build(vectors[:500], kind)
    before = old.search(vectors[:5], 8)
    middle = old.with_documents(["new"], vectors[:1], ["text"])
    newest = middle.without(["d0", "new"]).with_documents(["new"], -vectors[:1], ["another"])
    assert old.search(vectors[:5], 8) == before and len(old) == 500 and "new" not in old
    assert {hit.text for hit in middle.search(vectors[:1], 2)[0]} == {"text", None} and "d0" in middle
    assert newest.search(-vectors[:1], 1)[0][0].text == "another" and "d0" not in newest


def test_documents_of_a_change_that_failed_are_overwritten(vectors, monkeypatch):
    state = build(vectors[:500])
    with pytest.raises(ValueError, match="broadcast"):
        state.with_documents(["a", "b"], vectors[:2, :5], ["a", "b"])
    assert "a" not in state
    state = state.with_documents(["c"], vectors[:1], ["c"])
    assert state.column("id")[500:] == ["c"] and "b" not in state and "a" not in state


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
@pytest.mark.parametrize("which", ["near", "random"])
def test_many_removed_documents_leave_no_query_short(kind, which):
    vectors = np.random.default_rng(0).normal(size=(4000, 8)).astype(np.float32)
    faiss.normalize_L2(vectors)
    state = build(vectors, kind)
    order = np.argsort(-vectors @ vectors[0]) if which == "near" else np.random.default_rng(1).permutation(4000)
    left = order[1900:]
    state = state.without(names(order[:1900].tolist()))
    assert len(state.base) == 2100  # not made anew
    best = [names(left[np.argsort(-vectors[left] @ query)[:10]].tolist()) for query in vectors[:20]]
    hits = found(state, vectors[:20], 10)
    assert {len(ids) for ids in hits} == {10}
    assert np.mean([len(set(ids) & set(right)) for ids, right in zip(hits, best, strict=True)]) > 9
    state = state.without(names(order[1900:3990].tolist()))
    assert len(state.base.documents) < 2100  # made anew
    assert {len(ids) for ids in found(state, vectors[:20], 10)} == {10}


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_approximate_index_takes_in_many_added_documents(kind, monkeypatch):
    monkeypatch.setattr("cde_hf.index.state._MAX_ADDED_ROWS", 20)
    vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    state = build(vectors[:500], kind)
    sizes = set()
    for row in range(500, 600):
        state = state.with_documents(names([row]), vectors[row : row + 1], [None])
        sizes.add(len(state.added))
    assert sizes == set(range(21)) and len(state.base) == 584
    np.testing.assert_array_equal(state.vectors(), vectors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_survives_the_disk(vectors, kind, tmp_path):
    state = build(vectors[:500], kind).with_documents(names(range(500, 510)), vectors[500:510], ["text"] * 10)
    state = state.without(["d3", "d509"]).as_saved()
    write_index(tmp_path, state, None, {"fact": 1})
    facts, again, context = read_index(tmp_path, verify=True)
    assert facts["fact"] == 1 and context is None
    assert len(again) == 508 and len(again.base.documents) == 508
    assert again.search(vectors[:5], 4) == state.search(vectors[:5], 4)
    np.testing.assert_array_equal(again.vectors(), state.vectors())
    assert again.column("text") == state.column("text")
    # The files are only read.
    later = again.with_documents(["new"], vectors[:1], [None]).without(["d0"]).rebased()
    assert found(later, vectors[:1], 1) == [["new"]] and found(again, vectors[:1], 1) == [["d0"]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_state_survives_the_disk(vectors, kind, tmp_path):
    write_index(tmp_path, build(vectors, kind).without(names(range(600))).as_saved(), None, {})
    state = read_index(tmp_path, verify=True)[1]
    assert len(state) == 0 and found(state, vectors[:1], 3) == [[]]
    assert found(state.with_documents(["new"], vectors[:1], [None]), vectors[:1], 3) == [["new"]]
