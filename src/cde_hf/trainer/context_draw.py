"""Which documents are the context of a training step: a pure function of the seed and of the batch's rows."""

import hashlib
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from ..batching import BatchPlan


ContextSource = Literal["batch", "domain", "random"]


class ContextDraw:
    """
    Draws the context documents of a batch.

    Args:
        plan (`BatchPlan`):
            The plan, which knows the domains.
        size (`int`):
            Number of documents to draw, fewer if there are not so many.
        source (`str`, *optional*, defaults to `"batch"`):
            `"batch"`: the batch's own documents, all if they fit. `"domain"`: documents of its domain. `"random"`:
            documents of the whole data set.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws.
    """

    def __init__(self, plan: BatchPlan, size: int, *, source: ContextSource = "batch", seed: int = 0):
        if source not in get_args(ContextSource):
            raise ValueError(f"`context_source` must be one of {', '.join(get_args(ContextSource))}, got `{source}`.")
        self.plan = plan
        self.size = size
        self.source = source
        self.seed = seed

    def __call__(self, rows: Sequence[int]) -> np.ndarray:
        """Rows of the context documents of a batch, given the rows of all processes that share it."""
        rows = np.asarray(rows)
        if self.source == "batch":
            choices = rows
        elif self.source == "domain":
            choices = self._domain_rows(rows[0])
        else:
            choices = np.arange(len(self.plan))
        if len(choices) <= self.size:
            return choices
        generator = np.random.default_rng([self.seed, batch_seed(rows)])
        return generator.choice(choices, self.size, replace=False)

    def _domain_rows(self, row: int) -> np.ndarray:
        return np.flatnonzero(self.plan.domain_ids == self.plan.domain_ids[row])


def batch_seed(rows: Sequence[int]) -> int:
    """A number that stands for a batch, the same in every process and after every restart."""
    digest = hashlib.blake2b(np.asarray(rows, dtype=np.int64).tobytes(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


__all__ = ["ContextDraw", "ContextSource", "batch_seed"]
