"""Rows of documents: exact search equals FAISS', rows come and go, and the disk keeps them."""

import faiss
import numpy as np
import pytest

from cde_hf.index.storage import DocumentRows


KINDS = ["flat", "hnsw", "ivf"]


@pytest.fixture
def vectors():
    vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    faiss.normalize_L2(vectors)
    return vectors


def names(numbers):
    return [f"d{number}" for number in numbers]


def build(vectors, kind="auto"):
    return DocumentRows.build(vectors, names(range(len(vectors))), [None] * len(vectors), kind=kind)


def found(rows, query_vectors, depth):
    return [[hit.document_id for hit in hits] for hits in rows.search(query_vectors, depth)]


@pytest.mark.parametrize("num_queries", [1, 64])
def test_exact_search_gives_the_numbers_of_faiss(vectors, num_queries):
    bare = faiss.IndexFlatIP(16)
    bare.add(vectors)
    queries = np.ascontiguousarray(vectors[:num_queries, ::-1])
    scores, numbers = bare.search(queries, 10)
    hits = build(vectors).search(queries, 10)
    np.testing.assert_array_equal(np.array([[hit.score for hit in each] for each in hits], dtype=np.float32), scores)
    assert [[hit.document_id for hit in each] for each in hits] == [names(each) for each in numbers]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_added_bit_by_bit_are_found(vectors, kind):
    rows = build(vectors[:400], kind)
    for start in range(400, 600, 25):
        rows.add(names(range(start, start + 25)), vectors[start : start + 25], [None] * 25)
    np.testing.assert_array_equal(rows.vectors, vectors)
    assert rows.document_ids == names(range(600))
    is_found = [ids == [name] for ids, name in zip(found(rows, vectors, 1), names(range(600)), strict=True)]
    assert np.mean(is_found) > 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_any_left_find_nothing(vectors, kind):
    rows = build(vectors, kind)
    rows.remove(names(range(600)))
    assert len(rows) == 0 and found(rows, vectors[:2], 3) == [[], []]
    rows.compact()
    assert rows.vectors.shape == (0, 16) and found(rows, vectors[:2], 3) == [[], []]
    rows.add(["seven", "eight"], vectors[7:9], ["7", "8"])
    hit = rows.search(vectors[8:9], 1)[0][0]
    assert (hit.document_id, hit.text) == ("eight", "8")


@pytest.mark.parametrize("kind", KINDS)
def test_removed_rows_are_skipped_and_their_ids_can_be_used_again(vectors, kind):
    rows = build(vectors, kind)
    rows.remove(["d5", "d5", "d6"])
    assert len(rows) == 598 and "d5" not in rows and "d7" in rows
    assert not {"d5", "d6"} & {name for ids in found(rows, vectors[5:7], 600) for name in ids}
    rows.add(["d5"], vectors[5:6], [None])
    for is_compact in (False, True):
        if is_compact:
            rows.compact()
        assert found(rows, vectors[5:6], 1) == [["d5"]] and len(rows) == 599
        assert rows.document_ids == names([*range(5), *range(7, 600), 5])
        np.testing.assert_array_equal(rows.vectors, np.concatenate([vectors[:5], vectors[7:], vectors[5:6]]))
    rows.remove(["d7", "d5"])
    assert found(rows, vectors[8:9], 1) == [["d8"]] and len(rows) == 597


@pytest.mark.parametrize("kind", KINDS)
def test_the_given_array_may_change_afterwards(vectors, kind):
    rows = build(vectors, kind)
    expected = vectors.copy()
    vectors[:] = 0
    np.testing.assert_array_equal(rows.vectors, expected)
    rows.vectors[:] = 0
    np.testing.assert_array_equal(rows.vectors, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_survive_the_disk(vectors, kind, tmp_path):
    rows = build(vectors[:500], kind)
    rows.add(names(range(500, 510)), vectors[500:510], [None] * 10)
    for name, write in rows.writers().items():
        write(tmp_path / name)
    again = DocumentRows.read({path.name: path for path in tmp_path.iterdir()})
    assert again.writers().keys() == rows.writers().keys() and len(again) == 510
    assert again.search(vectors[:5], 4) == rows.search(vectors[:5], 4)
