"""Batches of one size from clusters of any size, and the nearest-neighbour order of their centroids."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cde_hf.batching import packing
from cde_hf.batching.packing import group_rows, nearest_neighbour_order, pack_batches


def brute_force_order(centroids):
    order = [0]
    while len(order) < len(centroids):
        distances = ((centroids - centroids[order[-1]]) ** 2).sum(axis=1)
        distances[order] = np.inf
        order.append(int(distances.argmin()))
    return order


@pytest.mark.parametrize("num_centroids", [1, 2, 30, 300])
def test_the_order_is_that_of_brute_force(num_centroids):
    centroids = np.random.default_rng(num_centroids).normal(size=(num_centroids, 5)).astype(np.float32)
    assert nearest_neighbour_order(centroids).tolist() == brute_force_order(centroids)


def mean_step(centroids, order):
    return np.linalg.norm(np.diff(centroids[order], axis=0), axis=1).mean()


def test_many_centroids_are_ordered_in_groups_about_as_well(monkeypatch):
    generator = np.random.default_rng(0)
    centroids = np.repeat(generator.normal(size=(40, 8)), 25, axis=0) + 0.3 * generator.normal(size=(1000, 8))
    greedy = nearest_neighbour_order(centroids)
    monkeypatch.setattr(packing, "_MAX_GREEDY", 100)
    in_groups = nearest_neighbour_order(centroids)
    assert sorted(in_groups) == list(range(1000))
    shuffled = mean_step(centroids, generator.permutation(1000))
    assert mean_step(centroids, in_groups) < 1.1 * mean_step(centroids, greedy) < 0.5 * shuffled


@pytest.mark.parametrize("max_greedy", [10, 100])
def test_equal_centroids_are_all_visited(monkeypatch, max_greedy):
    monkeypatch.setattr(packing, "_MAX_GREEDY", max_greedy)
    assert sorted(nearest_neighbour_order(np.zeros((50, 4)))) == list(range(50))


CLUSTERS = st.lists(st.integers(0, 6), min_size=1, max_size=80)


@settings(max_examples=60, deadline=None)
@given(CLUSTERS, st.integers(1, 12), st.integers(0, 5))
def test_every_batch_is_full_and_no_row_comes_twice(cluster_ids, batch_size, seed):
    cluster_ids = np.array(cluster_ids)
    order = np.random.default_rng(seed).permutation(7)
    batches = pack_batches(cluster_ids, batch_size, cluster_order=order, generator=np.random.default_rng(seed))
    assert batches.shape == (len(cluster_ids) // batch_size, batch_size)
    assert len(np.unique(batches)) == batches.size


def test_a_cluster_that_fills_batches_is_not_mixed():
    cluster_ids = np.array([0] * 8 + [1] * 4 + [2] * 3)
    batches = pack_batches(cluster_ids, 4, cluster_order=np.arange(3), generator=np.random.default_rng(0))
    assert [set(cluster_ids[batch]) for batch in batches] == [{0}, {0}, {1}]


def test_small_clusters_are_merged_with_their_neighbours_in_the_order():
    cluster_ids = np.repeat(np.arange(6), 2)
    order = np.array([3, 0, 5, 1, 4, 2])
    batches = pack_batches(cluster_ids, 4, cluster_order=order, generator=np.random.default_rng(0))
    assert [set(cluster_ids[batch]) for batch in batches] == [{3, 0}, {5, 1}, {4, 2}]


def test_other_rows_are_lost_by_another_generator():
    cluster_ids = np.repeat(np.arange(10), 5)
    lost = [
        set(range(50))
        - set(pack_batches(cluster_ids, 8, cluster_order=np.arange(10), generator=np.random.default_rng(seed)).ravel())
        for seed in range(20)
    ]
    assert all(len(rows) == 2 for rows in lost)
    assert len(set.union(*lost)) > 15


@pytest.mark.parametrize("block_size", [3, 1000])
def test_rows_are_grouped_block_by_block_as_a_stable_sort_would(monkeypatch, block_size):
    monkeypatch.setattr(packing, "_BLOCK_SIZE", block_size)
    group_ids = np.random.default_rng(0).integers(1, 6, 50)  # the first and the last group are empty
    order, starts = group_rows(group_ids, 7)
    np.testing.assert_array_equal(order, np.argsort(group_ids, kind="stable"))
    assert [set(group_ids[part]) for part in np.split(order, starts[1:-1])] == [set(), {1}, {2}, {3}, {4}, {5}, set()]
