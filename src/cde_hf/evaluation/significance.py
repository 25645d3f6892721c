"""Paired randomisation test: is one system significantly better than another?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import permutation_test


_SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """
    How two systems compare on the same queries.

    Args:
        difference (`float`):
            Mean score of the second system minus the first; averaged over the sets if there are several.
        p_value (`float`):
            Probability of a difference at least this large, in either direction, if the two scores of each query are
            assigned to the systems at random.
        num_queries (`int`):
            Number of queries.
    """

    difference: float
    p_value: float
    num_queries: int

    @property
    def is_significant(self) -> bool:
        """Whether p < 0.05."""
        return self.p_value < _SIGNIFICANCE_LEVEL


def compare_scores(
    first: Sequence[Mapping[str, float]],
    second: Sequence[Mapping[str, float]],
    *,
    num_resamples: int = 9999,
    seed: int = 0,
) -> Comparison:
    """
    Compares the scores of two systems query by query. All sets have the same weight.

    Args:
        first (sequence of `Mapping[str, float]`):
            The first system's score of each query, for each retrieval set.
        second (sequence of `Mapping[str, float]`):
            The second system's scores of the same queries.
        num_resamples (`int`, *optional*, defaults to `9999`):
            Number of random assignments. The smallest possible p-value is about its inverse.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the assignments.

    Returns:
        `Comparison`: The difference and its p-value.

    Example:

    ```python
    >>> worse, better = {"1": 0.1, "2": 0.2, "3": 0.4}, {"1": 0.3, "2": 0.5, "3": 0.5}
    >>> comparison = compare_scores([worse], [better])
    >>> round(comparison.difference, 3), comparison.p_value
    (0.2, 0.25)

    ```
    """
    parts = []
    for first_scores, second_scores in zip(first, second, strict=True):
        if first_scores.keys() != second_scores.keys() or not first_scores:
            raise ValueError(
                f"Two systems are compared on the same queries, got {len(first_scores)} and {len(second_scores)} "
                "queries that differ. Evaluate both on the same retrieval sets."
            )
        differences = np.array([second_scores[query] - first_scores[query] for query in first_scores])
        parts.append(differences / len(differences) / len(first))  # so that the sum is the mean of the sets' means
    weighted = np.concatenate(parts)
    difference = float(weighted.sum())
    if len(weighted) == 1 or not weighted.any():  # one query proves nothing
        return Comparison(difference, 1.0, len(weighted))
    result = permutation_test(
        (weighted,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=num_resamples,
        batch=max(1, 2_000_000 // len(weighted)),
        rng=np.random.default_rng(seed),
    )
    return Comparison(difference, float(result.pvalue), len(weighted))


__all__ = ["Comparison", "compare_scores"]
