"""What the experiments without training measure."""

from itertools import islice

import numpy as np
import pytest

from cde_hf import ClusteredBatchSampler, TfidfSurrogate, prepare_batch_plan
from experiments.batches import all_epochs
from experiments.divergence import divergence, inverse_frequencies
from experiments.movement import measure
from experiments.neighbours import RANKS, answer_shares, filter_shares


@pytest.fixture
def plan(workspace):
    pairs, _ = workspace.load_pairs(("farm",), None)
    return prepare_batch_plan(pairs, workspace.runs / "plan", surrogate=TfidfSurrogate(dim=16), cluster_size=16)


@pytest.fixture
def animals(workspace):
    """The animal of each pair of the farm, as a number."""
    queries = workspace.load_pairs(("farm",), None)[0]["query"]
    return np.unique([query.split()[0] for query in queries], return_inverse=True)[1]


def test_batches_go_on_over_epochs_in_another_order(plan):
    sampler = ClusteredBatchSampler(plan, 8)
    batches = list(islice(all_epochs(sampler), 2 * len(sampler)))
    first, second = (sorted(map(tuple, part)) for part in (batches[: len(sampler)], batches[len(sampler) :]))
    assert first != second
    assert len({row for batch in first for row in batch}) == 64


def test_nearer_documents_answer_more_often(plan, animals):
    shares = answer_shares(plan, animals)
    assert list(shares) == list(RANKS)
    assert shares[1] > shares[50] > 0


def test_a_lower_margin_finds_more_and_loses_more(plan, animals, monkeypatch):
    monkeypatch.setattr("experiments.neighbours.BATCH_SIZE", 16)
    strict, loose = (filter_shares(plan, animals, "cluster", margin) for margin in (0.0, -0.9))
    assert strict[0] == loose[0] > 1 / 16
    assert loose[1] > strict[1] and loose[2] > strict[2]


def test_a_corpus_diverges_from_another_and_not_from_itself():
    farm, bank = ["the cow and the hen", "the hen and hay"] * 5, ["the bank lends money", "money and interest"] * 5
    reference = inverse_frequencies(farm)
    assert divergence(farm, reference, unseen=3.0) == pytest.approx(0.0)
    assert divergence(bank, reference, unseen=3.0) > 0.5


def test_movement_tells_small_moves_from_large_ones():
    documents = np.eye(8)[:4]
    moved = documents + 0.1 * np.eye(8)[4]
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    still, near, far = measure(np.stack([documents, moved, documents[::-1]]), ["own", "own", "other"])
    assert still["to_itself"] == pytest.approx(1.0) and still["nearest_is_itself"] == 1.0
    assert 0.9 < near["to_itself"] < 1.0 and near["nearest_is_itself"] == 1.0
    assert far["to_itself"] == pytest.approx(0.0) and far["nearest_is_itself"] == 0.0
    # All move in one direction, or each in its own.
    assert near["common_share"] > 0.9
    assert still["common_share"] == far["common_share"] == 0.0
