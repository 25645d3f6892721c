"""Rows of vectors: exact search is that of FAISS, rows come and go, and the disk keeps them."""

import faiss
import numpy as np
import pytest

from cde_hf.retrieval.index_kinds import build_rows, read_rows


KINDS = ["flat", "hnsw", "ivf"]


@pytest.fixture
def vectors():
    vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    faiss.normalize_L2(vectors)
    return vectors


@pytest.mark.parametrize("num_queries", [1, 64])
def test_exact_search_gives_the_numbers_of_faiss(vectors, num_queries):
    bare = faiss.IndexFlatIP(16)
    bare.add(vectors)
    queries = np.ascontiguousarray(vectors[:num_queries, ::-1])
    for found, expected in zip(build_rows(vectors).search(queries, 10), bare.search(queries, 10), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_added_bit_by_bit_are_found(vectors, kind):
    rows = build_rows(vectors[:400], kind=kind)
    for start in range(400, 600, 25):
        rows.add(vectors[start : start + 25])
    np.testing.assert_array_equal(rows.vectors, vectors)
    assert (rows.search(vectors, 1)[1][:, 0] == np.arange(600)).mean() > 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_any_left_find_nothing(vectors, kind):
    rows = build_rows(vectors, kind=kind)
    rows.remove(np.arange(600))
    assert len(rows) == 0 and (rows.search(vectors[:2], 3)[1] == -1).all()
    rows.compact()
    assert rows.vectors.shape == (0, 16) and (rows.search(vectors[:2], 3)[1] == -1).all()
    rows.add(vectors[7:9])
    assert rows.search(vectors[8:9], 1)[1].tolist() == [[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_given_array_may_change_afterwards(vectors, kind):
    rows = build_rows(vectors, kind=kind)
    expected = vectors.copy()
    vectors[:] = 0
    np.testing.assert_array_equal(rows.vectors, expected)
    rows.vectors[:] = 0
    np.testing.assert_array_equal(rows.vectors, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_survive_the_disk(vectors, kind, tmp_path):
    rows = build_rows(vectors[:500], kind=kind)
    rows.add(vectors[500:510])
    path = tmp_path / rows.file_name
    rows.write(path)
    again = read_rows({rows.file_name: path})
    assert type(again) is type(rows) and len(again) == 510
    np.testing.assert_array_equal(again.search(vectors[:5], 4)[1], rows.search(vectors[:5], 4)[1])
