"""Checks of numbers that a user gives: counts, scales and seeds. All name the argument and what it was."""

import math
from numbers import Integral, Real
from typing import Any


def check_counts(**counts: Any) -> None:
    """Refuses counts that are not integers of at least 1. `None` stands for a default."""
    for name, count in counts.items():
        if count is not None and (not isinstance(count, Integral) or isinstance(count, bool) or count < 1):
            raise ValueError(f"`{name}` must be an integer of at least 1, got {count!r}.")


def check_positive(**numbers: Any) -> None:
    """Refuses numbers that are not finite and above 0. `None` stands for a default."""
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, Real) and 0 < float(number) < math.inf):
            raise ValueError(f"`{name}` must be positive, got {number!r}.")


def check_seed(seed: Any) -> None:
    """Refuses a seed that is not an integer of at least 0: a run without a seed cannot be repeated."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"`seed` must be an integer of at least 0, got {seed!r}.")


__all__ = ["check_counts", "check_positive", "check_seed"]
