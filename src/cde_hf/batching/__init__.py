"""From pairs to batches of neighbours: surrogate vectors, clusters, batch plan, sampler and false-negative filter."""

from .batch_plan import BatchPlan
from .clustering import KMeansSettings, cluster_pairs
from .false_negatives import FalseNegativeFilter, surrogate_scores
from .inspection import format_batch, format_statistics, write_inspection_page
from .preparation import prepare_batch_plan
from .sampler import ClusteredBatchSampler, sentence_transformers_batch_sampler
from .statistics import batch_statistics
from .surrogates import SentenceTransformerSurrogate, TfidfSurrogate


__all__ = [
    "BatchPlan",
    "ClusteredBatchSampler",
    "FalseNegativeFilter",
    "KMeansSettings",
    "SentenceTransformerSurrogate",
    "TfidfSurrogate",
    "batch_statistics",
    "cluster_pairs",
    "format_batch",
    "format_statistics",
    "prepare_batch_plan",
    "sentence_transformers_batch_sampler",
    "surrogate_scores",
    "write_inspection_page",
]
