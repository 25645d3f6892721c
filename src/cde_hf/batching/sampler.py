"""Batches of neighbours: a batch sampler whose batches depend only on plan, batch size, seed and epoch."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
from datasets import Dataset
from torch.utils.data import BatchSampler, SequentialSampler
from transformers.utils import logging

from ..data import check_counts, check_seed
from ..processes import process_state
from .batch_plan import BatchPlan
from .packing import group_rows, pack_batches


logger = logging.get_logger(__name__)

Grouping = Literal["cluster", "domain", "random"]
ClusterOrder = Literal["random", "tour"]


class ClusteredBatchSampler(BatchSampler):
    """
    Batch sampler that fills each batch from one cluster, or from neighbouring clusters of one domain.

    No pair occurs twice in an epoch. Each epoch drops fewer than `batch_size` pairs per domain, plus the last round if
    it cannot be dealt to every process. Which pairs are dropped changes from epoch to epoch.

    Args:
        plan (`BatchPlan`):
            The clusters.
        batch_size (`int`):
            Number of pairs in a batch of one process.
        grouping (`str`, *optional*, defaults to `"cluster"`):
            Where the pairs of a batch come from: the same `"cluster"`, the same `"domain"`, or anywhere (`"random"`).
            The last two are baselines.
        cluster_order (`str`, *optional*, defaults to `"tour"`):
            Which clusters are merged if one alone cannot fill a batch: neighbours in the nearest-neighbour order of
            the plan (`"tour"`), which begins elsewhere in each epoch, or in a `"random"` order.
        seed (`int`, *optional*, defaults to `0`):
            Random seed. It must be the same on every process.
        num_processes (`int`, *optional*, defaults to `1`):
            Number of processes that train together. The number of batches is a multiple of it.
        process_index (`int`, *optional*):
            The process whose batches to yield. By default all batches are yielded, and accelerate deals them to the
            processes in turn.

    Example:

    ```python
    >>> from cde_hf import BatchPlan, ClusteredBatchSampler
    >>> sampler = ClusteredBatchSampler(BatchPlan.load("plan"), batch_size=64)  # doctest: +SKIP
    >>> sampler.set_epoch(1)  # doctest: +SKIP

    ```
    """

    def __init__(
        self,
        plan: BatchPlan,
        batch_size: int,
        *,
        grouping: Grouping = "cluster",
        cluster_order: ClusterOrder = "tour",
        seed: int = 0,
        num_processes: int = 1,
        process_index: int | None = None,
    ):
        check_counts(batch_size=batch_size)
        check_seed(seed)
        super().__init__(SequentialSampler(plan), batch_size=batch_size, drop_last=True)
        for name, value, choices in (
            ("grouping", grouping, get_args(Grouping)),
            ("cluster_order", cluster_order, get_args(ClusterOrder)),
        ):
            if value not in choices:
                raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got `{value}`.")
        if process_index is not None and not 0 <= process_index < num_processes:
            raise ValueError(f"`process_index` must be below `num_processes={num_processes}`, got {process_index}.")
        self.plan = plan
        self.grouping = grouping
        self.cluster_order = cluster_order
        self.seed = seed
        self.num_processes = num_processes
        self.process_index = process_index
        self.epoch = 0
        self._domain_rows = self._group_by_domain()
        if len(self) == 0:
            largest = max(len(rows) for rows in self._domain_rows)
            raise ValueError(
                f"The domains cannot fill {num_processes} batches of {batch_size} pairs: the largest "
                f"of {len(self._domain_rows)} has {largest}. Lower the batch size: "
                "`per_device_train_batch_size` of a training."
            )

    def set_epoch(self, epoch: int) -> None:
        """Changes the random seed. Called by the trainer at the start of every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        num_rounds = sum(len(rows) // self.batch_size for rows in self._domain_rows) // self.num_processes
        return num_rounds if self.process_index is not None else num_rounds * self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        counts = [len(rows) // self.batch_size for rows in self._domain_rows]
        order = self._generator(len(counts)).permutation(sum(counts))
        order = order[: len(order) // self.num_processes * self.num_processes]
        if self.process_index is not None:
            order = order[self.process_index :: self.num_processes]
        # The batches of other processes are dropped domain by domain.
        batches = np.empty((len(order), self.batch_size), dtype=self._domain_rows[0].dtype)
        first = 0
        for domain, count in enumerate(counts):
            places = np.flatnonzero((first <= order) & (order < first + count))
            batches[places] = self._pack_domain(domain)[order[places] - first]
            first += count
        for batch in batches:
            yield batch.tolist()

    def _generator(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, stream + 1])  # a last 0 would change nothing

    def _group_by_domain(self) -> list[np.ndarray]:
        one_domain = self.grouping == "random"
        ids = np.zeros(len(self.plan), dtype=np.int8) if one_domain else self.plan.domain_ids
        order, starts = group_rows(ids, 1 if one_domain else len(self.plan.domains))
        return np.split(order, starts[1:-1])

    def _pack_domain(self, domain: int) -> np.ndarray:
        rows = self._domain_rows[domain]
        generator = self._generator(domain)
        if self.grouping == "cluster":
            clusters = np.flatnonzero(self.plan.cluster_domains == domain)
            cluster_ids = self.plan.cluster_ids[rows]
            cluster_ids -= clusters[0].astype(cluster_ids.dtype)  # a domain's clusters have successive numbers
            cluster_order = self._order_clusters(len(clusters), generator)
        else:
            cluster_ids, cluster_order = np.zeros(len(rows), dtype=np.int8), np.zeros(1, dtype=np.int64)
        packed = pack_batches(cluster_ids, self.batch_size, cluster_order=cluster_order, generator=generator)
        return rows[packed]

    def _order_clusters(self, num_clusters: int, generator: np.random.Generator) -> np.ndarray:
        if self.cluster_order == "random":
            return generator.permutation(num_clusters)
        return np.roll(np.arange(num_clusters), -generator.integers(num_clusters))


def sentence_transformers_batch_sampler(plan: BatchPlan) -> Callable[..., BatchSampler]:
    """
    Makes contextual batches for training any sentence-transformers model.

    Args:
        plan (`BatchPlan`):
            The plan of the training set. The rows of the training set must stay in order. A data set of another
            length, such as an evaluation set, gets plain batches.

    Returns:
        `Callable`: For the argument `batch_sampler` of `SentenceTransformerTrainingArguments`.
    """

    from sentence_transformers.base.sampler import DefaultBatchSampler  # here, because importing it takes seconds

    def make(dataset: Dataset, batch_size: int, *, seed: int = 0, **_unused_by_clusters: Any) -> BatchSampler:
        if len(dataset) != len(plan):
            logger.info(
                f"The batch plan is not for this data set of {len(dataset)} rows: it gets plain batches, in the order "
                "of its rows."
            )
            return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
        plan.check_dataset(dataset)
        num_processes = process_state().num_processes
        return ClusteredBatchSampler(plan, batch_size, seed=seed, num_processes=num_processes)

    return make


__all__ = ["ClusteredBatchSampler", "sentence_transformers_batch_sampler"]
