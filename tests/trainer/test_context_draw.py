"""Which documents are the context of a step."""

import numpy as np
import pytest

from cde_hf import BatchPlan
from cde_hf.trainer.collator import ContextDraw, batch_seed


@pytest.fixture(scope="module")
def plan(plan_folder):
    return BatchPlan.load(plan_folder)


def test_a_batch_that_fits_is_its_own_context(plan):
    assert ContextDraw(plan, 8, source="batch")([3, 1, 2]).tolist() == [3, 1, 2]


def test_a_larger_batch_is_sampled_without_repetition(plan):
    rows = list(range(0, 40, 2))
    drawn = ContextDraw(plan, 6, source="batch")(rows)
    assert len(set(drawn.tolist())) == 6
    assert set(drawn.tolist()) <= set(rows)


def test_the_draw_depends_on_seed_and_rows_alone(plan):
    rows = list(range(20))
    first = ContextDraw(plan, 6, seed=1)(rows)
    np.testing.assert_array_equal(ContextDraw(plan, 6, seed=1)(rows), first)
    assert ContextDraw(plan, 6, seed=2)(rows).tolist() != first.tolist()
    assert ContextDraw(plan, 6, seed=1)(rows[::-1]).tolist() != first.tolist()


def test_a_domain_context_stays_in_the_domain(plan):
    drawn = ContextDraw(plan, 6, source="domain")([0, 2])
    assert set(plan.domain_ids[drawn]) == {plan.domain_ids[0]}
    assert not set(drawn.tolist()) <= {0, 2}


def test_a_domain_context_may_be_any_of_the_domain(plan):
    drawn = ContextDraw(plan, len(plan), source="domain")([0])
    assert set(drawn) == set(np.flatnonzero(plan.domain_ids == plan.domain_ids[0]))


def test_half_of_the_cluster_contexts_are_of_the_cluster_and_half_of_the_domain(plan):
    draw, kinds = ContextDraw(plan, 6), []
    for row in range(len(plan)):
        drawn = draw([row])
        assert len(set(drawn)) == 6
        assert set(plan.domain_ids[drawn]) == {plan.domain_ids[row]}
        kinds.append(set(plan.cluster_ids[drawn]) == {plan.cluster_ids[row]})
    assert 0.35 < np.mean(kinds) < 0.65


def test_clusters_that_are_too_small_are_filled_up_from_the_domain(plan):
    size = np.bincount(plan.cluster_ids).max() + 5
    draw = ContextDraw(plan, size)
    contexts = [draw([row]) for row in range(len(plan))]
    for row, drawn in enumerate(contexts):
        assert len(set(drawn)) == size
        assert set(plan.domain_ids[drawn]) == {plan.domain_ids[row]}
    members = [set(np.flatnonzero(plan.cluster_ids == cluster)) for cluster in plan.cluster_ids]
    whole = [own <= set(drawn) for own, drawn in zip(members, contexts, strict=True)]
    assert np.mean(whole) > 0.35


def test_a_random_context_comes_from_all_domains(plan):
    drawn = ContextDraw(plan, 30, source="random")([0, 2])
    assert set(plan.domain_ids[drawn]) == {0, 1}


def test_a_batch_has_one_number():
    assert batch_seed([1, 2, 3]) == batch_seed(np.array([1, 2, 3], dtype=np.int32)) != batch_seed([1, 3, 2])


def test_an_unknown_source_is_refused(plan):
    with pytest.raises(ValueError, match="must be one of cluster, batch, domain, random, got `topic`"):
        ContextDraw(plan, 6, source="topic")
