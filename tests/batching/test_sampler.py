"""The laws of the sampler, on plans with any sizes of domains and clusters."""

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from accelerate import skip_first_batches
from accelerate.data_loader import BatchSamplerShard
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from cde_hf.batching import ClusteredBatchSampler, packing, sentence_transformers_batch_sampler


@dataclass
class Plan:
    """The part of a batch plan that the sampler reads."""

    domain_ids: np.ndarray
    cluster_ids: np.ndarray
    cluster_domains: np.ndarray
    centroids: np.ndarray
    domains: list

    def __len__(self):
        return len(self.domain_ids)


@st.composite
def plans(draw):
    """A plan of one to four domains, each with one to five clusters of one to twenty pairs, in shuffled order."""
    sizes = draw(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), min_size=1, max_size=4))
    cluster_domains = np.array([domain for domain, clusters in enumerate(sizes) for _ in clusters])
    cluster_sizes = [size for clusters in sizes for size in clusters]
    cluster_ids = np.repeat(np.arange(len(cluster_sizes)), cluster_sizes)
    cluster_ids = np.random.default_rng(draw(st.integers(0, 3))).permutation(cluster_ids)
    centroids = np.random.default_rng(0).normal(size=(len(cluster_sizes), 4)).astype(np.float32)
    return Plan(
        cluster_domains[cluster_ids],
        cluster_ids,
        cluster_domains,
        centroids,
        [f"domain {i}" for i in range(len(sizes))],
    )


def make_sampler(plan, batch_size, **options):
    try:
        return ClusteredBatchSampler(plan, batch_size, **options)
    except ValueError:
        assume(False)


OPTIONS = st.fixed_dictionaries(
    {
        "grouping": st.sampled_from(["cluster", "domain", "random"]),
        "cluster_order": st.sampled_from(["random", "tour"]),
        "seed": st.integers(0, 3),
    }
)
LAWS = settings(max_examples=80, deadline=None)


@LAWS
@given(plans(), st.integers(1, 9), OPTIONS, st.integers(0, 3))
def test_no_pair_comes_twice_and_no_batch_crosses_a_domain(plan, batch_size, options, epoch):
    sampler = make_sampler(plan, batch_size, **options)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    rows = [row for batch in batches for row in batch]
    assert len(rows) == len(set(rows))
    assert all(len(batch) == batch_size for batch in batches)
    if options["grouping"] != "random":
        assert all(len(set(plan.domain_ids[batch])) == 1 for batch in batches)


@LAWS
@given(plans(), st.integers(1, 6), OPTIONS, st.sampled_from([1, 2, 4]))
def test_len_equals_iteration_on_every_process(plan, batch_size, options, num_processes):
    options = {**options, "num_processes": num_processes}
    samplers = [make_sampler(plan, batch_size, process_index=index, **options) for index in range(num_processes)]
    batches = [list(sampler) for sampler in samplers]
    assert {len(sampler) for sampler in samplers} == {len(part) for part in batches} == {len(batches[0])}
    rows = [row for part in batches for batch in part for row in batch]
    assert len(rows) == len(set(rows)) == num_processes * batch_size * len(batches[0])
    everything = make_sampler(plan, batch_size, **options)
    assert len(everything) == len(list(everything))


@LAWS
@given(plans(), st.integers(1, 6), OPTIONS, st.sampled_from([2, 4]))
def test_accelerate_may_deal_whole_batches_in_turn(plan, batch_size, options, num_processes):
    everything = list(make_sampler(plan, batch_size, num_processes=num_processes, **options))
    for index in range(num_processes):
        own = make_sampler(plan, batch_size, num_processes=num_processes, process_index=index, **options)
        assert list(own) == everything[index::num_processes]


@LAWS
@given(plans(), st.integers(1, 6), OPTIONS, st.integers(0, 3))
def test_the_same_seed_and_epoch_give_the_same_order(plan, batch_size, options, epoch):
    first, second = (make_sampler(plan, batch_size, **options) for _ in range(2))
    list(first)  # an epoch before does not matter
    first.set_epoch(epoch)
    second.set_epoch(epoch)
    assert list(first) == list(second)


@LAWS
@given(plans(), st.integers(1, 6), st.sampled_from([1, 2, 4]))
def test_little_is_lost(plan, batch_size, num_processes):
    sampler = make_sampler(plan, batch_size, num_processes=num_processes)
    num_lost = len(plan) - batch_size * len(sampler)
    assert num_lost <= (batch_size - 1) * len(plan.domains) + batch_size * (num_processes - 1)


def test_another_epoch_and_another_seed_are_other_batches(plan):
    sampler = ClusteredBatchSampler(plan, 8)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    other_seed = list(ClusteredBatchSampler(plan, 8, seed=1))
    assert all(
        first != second
        for first, second in zip([*epochs, other_seed], [*epochs[1:], other_seed, epochs[0]], strict=False)
    )
    assert {frozenset(batch) for batch in epochs[0]} != {frozenset(batch) for batch in epochs[1]}


def test_what_is_lost_changes_with_the_epoch(plan):
    sampler = ClusteredBatchSampler(plan, 50)
    lost = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        lost.append(frozenset(range(len(plan))) - {row for batch in sampler for row in batch})
    assert len(set(lost)) == 6


def test_batches_are_made_of_neighbours(plan, pairs):
    topics = np.array(pairs["topic"])

    def mean_number_of_topics(**options):
        return np.mean([len(set(topics[batch])) for batch in ClusteredBatchSampler(plan, 15, **options)])

    assert mean_number_of_topics() < 2 < mean_number_of_topics(grouping="domain") < 4.1
    assert mean_number_of_topics(grouping="random") > 5


def test_small_clusters_are_merged_in_the_order_of_the_plan_and_it_begins_elsewhere_in_each_epoch():
    cluster_ids = np.repeat(np.arange(20), 2)
    plan = Plan(np.zeros(40, dtype=int), cluster_ids, np.zeros(20, dtype=int), np.zeros((20, 1)), ["all"])
    sampler = ClusteredBatchSampler(plan, 4)
    merged = []
    for epoch in range(8):
        sampler.set_epoch(epoch)
        merged.append({tuple(sorted(set(cluster_ids[batch]))) for batch in sampler})
        assert all((last - first) in (1, 19) for first, last in merged[-1])
    assert len(set(map(frozenset, merged))) == 2  # the first cluster is merged with the second or the last one


def test_a_process_holds_its_own_batches_and_few_bytes_of_each_pair(monkeypatch):
    monkeypatch.setattr(packing, "_BLOCK_SIZE", 10_000)
    num_pairs, num_clusters = 400_000, 4_000
    cluster_ids = np.random.default_rng(0).integers(0, num_clusters, num_pairs, dtype=np.int32)
    cluster_domains = np.repeat(np.arange(4, dtype=np.int32), num_clusters // 4)
    domains = ["a", "b", "c", "d"]
    plan = Plan(cluster_domains[cluster_ids], cluster_ids, cluster_domains, np.zeros((num_clusters, 1)), domains)
    tracemalloc.start()
    try:
        batches = iter(ClusteredBatchSampler(plan, 1000, num_processes=8, process_index=0))
        next(batches)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 6 * num_pairs and peak < 20 * num_pairs


def test_a_batch_larger_than_every_domain_is_refused(plan):
    with pytest.raises(ValueError, match="cannot fill 1 batches of 121 pairs: the largest of 2 has 120.*Lower"):
        ClusteredBatchSampler(plan, 121)
    with pytest.raises(ValueError, match="Lower the batch size"):
        ClusteredBatchSampler(plan, 61, num_processes=4)


def test_accelerate_deals_the_batches_of_a_dataloader(plan, pairs):
    sampler = ClusteredBatchSampler(plan, 8, num_processes=2)
    shards = [
        BatchSamplerShard(sampler, num_processes=2, process_index=index, even_batches=False) for index in range(2)
    ]
    own = [ClusteredBatchSampler(plan, 8, num_processes=2, process_index=index) for index in range(2)]
    for shard, expected in zip(shards, own, strict=True):
        assert list(shard) == list(expected)
        assert len(shard) == len(expected)


def test_a_dataloader_in_mid_epoch_goes_on(plan, pairs):
    loader = DataLoader(pairs, batch_sampler=ClusteredBatchSampler(plan, 8, seed=3))
    whole = [batch["query"] for batch in loader]
    assert [batch["query"] for batch in skip_first_batches(loader, 5)] == whole[5:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grouping": "clusters"}, "`grouping` must be one of cluster, domain, random, got `clusters`"),
        ({"cluster_order": "greedy"}, "`cluster_order` must be one of random, tour, got `greedy`"),
        ({"num_processes": 2, "process_index": 2}, "`process_index` must be below `num_processes=2`, got 2"),
    ],
)
def test_bad_options_are_refused(plan, options, message):
    with pytest.raises(ValueError, match=message):
        ClusteredBatchSampler(plan, 8, **options)


def test_another_data_set_gets_plain_batches_in_sentence_transformers(plan, pairs):
    make = sentence_transformers_batch_sampler(plan)
    assert isinstance(make(pairs, 8, seed=0, drop_last=True), ClusteredBatchSampler)
    assert list(make(pairs.select(range(10)), 4, seed=0, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
