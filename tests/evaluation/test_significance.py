"""The paired randomisation test."""

import itertools

import numpy as np
import pytest

from cde_hf.evaluation import compare_scores


def scores(values):
    return {f"q{number}": float(value) for number, value in enumerate(values)}


def exact_p_value(differences):
    """Share of all sign patterns whose sum is at least as far from zero."""
    sums = [sum(np.multiply(differences, signs)) for signs in itertools.product((-1, 1), repeat=len(differences))]
    return np.mean(np.abs(sums) >= abs(sum(differences)) - 1e-12)


def test_few_queries_give_the_exact_p_value():
    first, second = np.random.default_rng(0).random((2, 8))
    comparison = compare_scores([scores(first)], [scores(second + 0.1)])
    assert comparison.difference == pytest.approx(np.mean(second + 0.1 - first))
    assert comparison.p_value == pytest.approx(exact_p_value(second + 0.1 - first), abs=0.01)


def test_every_set_counts_alike():
    small, large = [0.5, 0.1, 0.3, 0.2], np.full(100, -0.1)
    comparison = compare_scores(
        [scores(np.zeros(4)), scores(np.zeros(100))], [scores(small), scores(large)], num_resamples=999
    )
    assert comparison.difference == pytest.approx((np.mean(small) - 0.1) / 2)
    assert comparison.num_queries == 104


def test_a_clear_difference_is_significant_and_noise_is_not():
    generator = np.random.default_rng(1)
    base, noise = generator.random(200), generator.normal(scale=0.1, size=200)
    assert compare_scores([scores(base)], [scores(base + 0.05 + noise)]).p_value < 0.001
    assert compare_scores([scores(base)], [scores(base + noise - noise.mean() + 0.001)]).p_value > 0.5


def test_equal_scores_are_no_difference():
    assert compare_scores([scores([0.1, 0.2])], [scores([0.1, 0.2])]).p_value == 1


def test_the_same_seed_gives_the_same_p_value():
    first, second = np.random.default_rng(2).random((2, 50))
    p_values = [compare_scores([scores(first)], [scores(second)], seed=seed).p_value for seed in (0, 0, 1)]
    assert p_values[0] == p_values[1] != p_values[2]


@pytest.mark.parametrize("other", [{}, {"q1": 0.5}, {"q0": 0.5, "q1": 0.5}])
def test_different_queries_are_refused(other):
    with pytest.raises(ValueError, match="got 1 and . queries that differ"):
        compare_scores([scores([0.5])], [other])


def test_one_query_proves_nothing():
    comparison = compare_scores([scores([0.0])], [scores([1.0])])
    assert (comparison.difference, comparison.p_value, comparison.is_significant) == (1.0, 1.0, False)
