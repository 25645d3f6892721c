"""Which documents are the context of a step."""

import numpy as np
import pytest

from cde_hf import BatchPlan
from cde_hf.trainer.collator import ContextDraw, batch_seed


@pytest.fixture(scope="module")
def plan(plan_folder):
    return BatchPlan.load(plan_folder)


def test_a_batch_that_fits_is_its_own_context(plan):
    assert ContextDraw(plan, 8)([3, 1, 2]).tolist() == [3, 1, 2]


def test_a_larger_batch_is_sampled_without_repetition(plan):
    rows = list(range(0, 40, 2))
    drawn = ContextDraw(plan, 6)(rows)
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


def test_a_random_context_comes_from_all_domains(plan):
    drawn = ContextDraw(plan, 30, source="random")([0, 2])
    assert set(plan.domain_ids[drawn]) == {0, 1}


def test_a_batch_has_one_number():
    assert batch_seed([1, 2, 3]) == batch_seed(np.array([1, 2, 3], dtype=np.int32)) != batch_seed([1, 3, 2])


def test_an_unknown_source_is_refused(plan):
    with pytest.raises(ValueError, match="`context_source` must be one of batch, domain, random, got `cluster`"):
        ContextDraw(plan, 6, source="cluster")
