"""Mined negatives lie just below the positive, and training reads them."""

from dataclasses import replace

import numpy as np
import pytest

from cde_hf.batching import surrogate_scores
from experiments.runner.config import RunConfig
from experiments.runner.mining import mine_negatives
from experiments.runner.training import read_training, train_run


@pytest.fixture
def mined(workspace):
    """The pairs of both domains with two negatives each, and their plan without."""
    pairs, _ = workspace.load_pairs(("farm", "zoo"), None)
    plan = workspace.load_plan(RunConfig(domains=("farm", "zoo")))
    return mine_negatives(pairs, plan, 2), plan


def test_a_pair_gets_the_documents_just_below_its_own(mined):
    pairs, plan = mined
    documents = pairs["document"][:]
    scores = surrogate_scores(plan, np.arange(len(pairs)))
    for row, negatives in enumerate(pairs["negatives"]):
        own = np.flatnonzero(plan.domain_ids == plan.domain_ids[row])
        below = [other for other in own if scores[row, other] < scores[row, row]]
        highest = sorted((scores[row, other] for other in below), reverse=True)[:2]
        assert [scores[row, documents.index(text)] for text in negatives] == pytest.approx(highest)
    assert {len(negatives) for negatives in pairs["negatives"]} == {2}


def test_equal_documents_are_mined_once_and_never_for_themselves(workspace, write_domain):
    write_domain(workspace.data / "train" / "farm.jsonl.gz", "The {0} was sold.")  # eight documents, eight times each
    pairs, _ = workspace.load_training_pairs(RunConfig(domains=("farm", "zoo"), mined_negatives=4))
    farm = pairs.filter(lambda row: row["domain"] == "farm")
    assert len(farm) == 64 and len(set(farm["document"])) == 8
    for row in farm:
        assert len({*row["negatives"], row["document"]}) == 5


def test_mined_negatives_make_another_run_in_the_same_batches(workspace, config):
    config = replace(config, architecture="biencoder")
    with_negatives = replace(config, mined_negatives=2)
    plan, other = workspace.load_plan(config), workspace.load_plan(with_negatives)
    assert np.array_equal(plan.cluster_ids, other.cluster_ids)
    assert len(other.negative_hashes) == 2 * len(other)
    plain, harder = (read_training(train_run(workspace, each)) for each in (config, with_negatives))
    assert plain["hardness"] == harder["hardness"]
    assert harder["loss"] > plain["loss"]  # more documents in the same softmax


def test_another_way_of_mining_makes_another_run(workspace, config, monkeypatch):
    before = workspace.run_folder(replace(config, mined_negatives=1))
    monkeypatch.setattr(
        "experiments.runner.workspace.mine_negatives", lambda pairs, plan, num: mine_negatives(pairs, plan, 3)
    )
    fresh = type(workspace)(workspace.runs, workspace.data)
    assert fresh.run_folder(replace(config, mined_negatives=1)) != before
