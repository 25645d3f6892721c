"""Collator: turns the rows of a batch into token ids, context documents and a mask of false negatives."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..batching import BatchPlan, FalseNegativeFilter, surrogate_scores
from ..batching.packing import group_rows
from ..data import Prompts


ContextSource = Literal["cluster", "batch", "domain", "random"]


class ContextDraw:
    """
    Samples the context documents of a batch. The sample depends on the seed and on the rows of the batch alone.

    Args:
        plan (`BatchPlan`):
            The batch plan, which holds the domains.
        size (`int`):
            Number of documents to sample. All documents if there are fewer.
        source (`str`, *optional*, defaults to `"cluster"`):
            `"cluster"`: documents of the batch's clusters, filled up from its domain if they are too few; and in every
            second batch, by chance, documents of the domain. Clusters are thousands of small corpora to learn from,
            domains are like the corpora of inference. `"batch"`: documents of the batch itself. `"domain"`: documents
            of its domain. `"random"`: documents of the entire data set.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples.
    """

    def __init__(self, plan: BatchPlan, size: int, *, source: ContextSource = "cluster", seed: int = 0):
        if source not in get_args(ContextSource):
            raise ValueError(f"`context_source` must be one of {', '.join(get_args(ContextSource))}, got `{source}`.")
        self.plan = plan
        self.size = size
        self.source = source
        self.seed = seed

    def __call__(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the rows of the context documents. Takes the rows of all processes that share the batch."""
        rows = np.asarray(rows)
        generator = np.random.default_rng([self.seed, batch_seed(rows)])
        if self.source == "batch":
            return _sample(rows, self.size, generator)
        if self.source == "random":
            return _sample_numbers(len(self.plan), self.size, generator)
        domain = _sample(self._rows_of_domain(self.plan.domain_ids[rows[0]]), self.size, generator)
        if self.source == "domain" or generator.random() < 0.5:
            return domain
        near = np.concatenate([self._rows_of_cluster(cluster) for cluster in np.unique(self.plan.cluster_ids[rows])])
        near = _sample(near, self.size, generator)
        return np.concatenate([near, domain[~np.isin(domain, near)][: self.size - len(near)]])

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray]:
        """
        All rows, cluster by cluster, and the place of each cluster's first row and the end. Clusters are numbered
        domain by domain, so it is an order of domains too.
        """
        return group_rows(self.plan.cluster_ids, len(self.plan.cluster_domains))

    def _rows_of_cluster(self, cluster: int) -> np.ndarray:
        order, starts = self._groups
        return order[starts[cluster] : starts[cluster + 1]]

    def _rows_of_domain(self, domain: int) -> np.ndarray:
        order, starts = self._groups
        first, after = np.searchsorted(self.plan.cluster_domains, [domain, domain + 1])
        return order[starts[first] : starts[after]]


def _sample(rows: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    return rows[_sample_numbers(len(rows), size, generator)]


def _sample_numbers(count: int, size: int, generator: np.random.Generator) -> np.ndarray:
    """Samples numbers below `count`, or returns all of them if there are not more."""
    return np.arange(count) if count <= size else generator.choice(count, size, replace=False)


def batch_seed(rows: Sequence[int] | np.ndarray) -> int:
    """Returns a number that identifies a batch, the same in every process and after every restart."""
    digest = hashlib.blake2b(np.asarray(rows, dtype=np.int64).tobytes(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


class ContrastiveCollator:
    """
    Makes the inputs of a training step from row numbers.

    Processes that share a batch all get its rows, and each tokenizes its part of the texts.

    Args:
        dataset (`datasets.Dataset`):
            Pairs: `query`, `document`, optional `negatives` and `domain`.
        tokenizer (`PreTrainedTokenizerBase`):
            The model's tokenizer.
        false_negatives (`FalseNegativeFilter`):
            The false-negative filter. The surrogate vectors of its plan also measure how hard a batch is.
        context_draw (`ContextDraw`, *optional*):
            Samples the context documents. `None` for a biencoder.
        prompts (`Prompts`, *optional*):
            Texts to put before queries and documents. Defaults to the paper's.
        max_length (`int`, *optional*, defaults to `512`):
            Texts are truncated to this number of tokens.
        context_max_length (`int`, *optional*):
            Context documents are truncated to this number of tokens. Defaults to `max_length`.
        filters (`bool`, *optional*, defaults to `True`):
            Whether to drop likely false negatives. A known answer of a query is never its negative.
        in_batch_negatives (`bool`, *optional*, defaults to `True`):
            Whether the documents and hard negatives of the other pairs are negatives too.
        num_processes (`int`, *optional*, defaults to `1`):
            Number of processes that share a batch.
        process_index (`int`, *optional*, defaults to `0`):
            The part of a shared batch that this process tokenizes.
    """

    def __init__(
        self,
        dataset: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        false_negatives: FalseNegativeFilter,
        *,
        context_draw: ContextDraw | None = None,
        prompts: Prompts | None = None,
        max_length: int = 512,
        context_max_length: int | None = None,
        filters: bool = True,
        in_batch_negatives: bool = True,
        num_processes: int = 1,
        process_index: int = 0,
    ):
        if not in_batch_negatives and "negatives" not in dataset.column_names:
            raise ValueError(
                "Without in-batch negatives every pair needs hard negatives, but the data set has no column "
                "`negatives`. Add it, or leave `in_batch_negatives` on."
            )
        self.dataset = dataset
        columns = [name for name in ("query", "document", "domain") if name in dataset.column_names]
        self._pairs_without_negatives = dataset.select_columns(columns)
        self.tokenizer = tokenizer
        self.false_negatives = false_negatives
        self.context_draw = context_draw
        self.prompts = prompts or Prompts()
        self.max_length = max_length
        self.context_max_length = context_max_length or max_length
        self.filters = filters
        self.in_batch_negatives = in_batch_negatives
        self.num_processes = num_processes
        self.process_index = process_index

    def __call__(self, rows: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """
        Makes the inputs of one process.

        Args:
            rows (`Sequence[int]`):
                Rows of the batch. If the batch is shared, the rows of all processes.

        Returns:
            `dict`: `input_ids`, `attention_mask` and `lengths` (in tokens) of queries, documents and negatives;
            `num_queries`; `rows`; `negative_counts`, the number of hard negatives of each process; `left_out` of shape
            `(num_queries, num_documents)`; `hardness`; `filtered_share`; and for a contextual model
            `context_input_ids`, `context_attention_mask`, `context_lengths`, `context_rows` and `seed`.
        """
        rows = np.asarray(rows)
        num_queries = len(rows) // self.num_processes
        own = slice(self.process_index * num_queries, (self.process_index + 1) * num_queries)
        pairs = self._prepare(self.dataset[rows[own]])
        negatives = [text for texts in pairs.get("negatives", []) for text in texts]
        texts = [*pairs["query"], *pairs["document"], *negatives]
        inputs = {
            **self._tokenize(texts, self.max_length),
            "num_queries": num_queries,
            "rows": rows.tolist(),
            "negative_counts": self._count_negatives(rows).reshape(self.num_processes, -1).sum(axis=1).tolist(),
            **self._negatives(rows, own),
        }
        if self.context_draw is not None:
            context_rows = self.context_draw(rows)
            documents = self._prepare(self._pairs_without_negatives[context_rows])["document"]
            tokens = self._tokenize(documents, self.context_max_length)
            inputs.update({f"context_{name}": value for name, value in tokens.items()})
            inputs["context_rows"] = context_rows.tolist()
            inputs["seed"] = batch_seed(rows)
        return inputs

    def _prepare(self, pairs: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Puts the prompts before the texts. A contextual model's texts are stripped, as in its `encode`."""
        if self.context_draw is not None:
            for name in ("query", "document"):
                pairs[name] = [text.strip() for text in pairs[name]]
            if "negatives" in pairs:
                pairs["negatives"] = [[text.strip() for text in texts] for texts in pairs["negatives"]]
        return self.prompts.apply(pairs)

    def _tokenize(self, texts: list[str], max_length: int) -> dict[str, Tensor | list[int]]:
        tokens = self.tokenizer(
            texts, truncation=True, max_length=max_length, padding=True, padding_side="right", return_tensors="pt"
        )
        mask = tokens["attention_mask"]
        return {"input_ids": tokens["input_ids"], "attention_mask": mask, "lengths": mask.sum(dim=1).tolist()}

    def _count_negatives(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of hard negatives of each row."""
        offsets = self.false_negatives.plan.negative_offsets
        return np.zeros(len(rows), dtype=np.int64) if offsets is None else offsets[rows + 1] - offsets[rows]

    def _negatives(self, rows: np.ndarray, own: slice) -> dict[str, Any]:
        """Returns the mask of documents that are not negatives, and the surrogate's statistics of the batch."""
        num_pairs = len(rows)
        queries = np.arange(num_pairs)[own]
        is_other_pair = queries[:, None] != np.arange(num_pairs)
        if self.filters:
            scores, is_false = self.false_negatives(rows, queries)
        else:
            scores = surrogate_scores(self.false_negatives.plan, rows, queries)
            is_false = self.false_negatives.known_answers(rows, queries)
        facts: dict[str, Any] = {"hardness": 0.0, "filtered_share": 0.0}
        if num_pairs > 1:
            facts["hardness"] = float(scores[:, :num_pairs][is_other_pair].mean())
            facts["filtered_share"] = float(is_false[:, :num_pairs][is_other_pair].mean())
        left_out = is_false
        if not self.in_batch_negatives:
            pairs = np.arange(num_pairs)
            owners = np.concatenate([pairs, np.repeat(pairs, self._count_negatives(rows))])
            is_others = queries[:, None] != owners
            left_out = is_false | is_others
        return {**facts, "left_out": torch.from_numpy(left_out)}


__all__ = ["ContextDraw", "ContextSource", "ContrastiveCollator", "batch_seed"]
