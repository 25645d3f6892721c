"""cde-hf: contextual document embeddings for Hugging Face, text embeddings that know the corpus they are used on."""

from .batching import (
    BatchPlan,
    ClusteredBatchSampler,
    FalseNegativeFilter,
    GraphSettings,
    KMeansSettings,
    SentenceTransformerSurrogate,
    TfidfSurrogate,
    batch_statistics,
    cluster_pairs,
    find_communities,
    format_statistics,
    prepare_batch_plan,
    sentence_transformers_batch_sampler,
    write_inspection_page,
)
from .data import (
    PairSource,
    Prompts,
    RetrievalSet,
    check_pairs,
    docstring_pairs,
    docstring_split,
    load_pairs,
    load_retrieval_set,
    load_sources,
    retrieval_set_from_pairs,
    save_retrieval_set,
)
from .hub import save_checkpoint, save_with_context
from .modeling import CDEConfig, CDEModel, CDEOutput, ContextBlock, CorpusContext, sample_documents


__version__ = "0.1.0.dev0"

__all__ = [
    "BatchPlan",
    "CDEConfig",
    "CDEModel",
    "CDEOutput",
    "ClusteredBatchSampler",
    "ContextBlock",
    "CorpusContext",
    "FalseNegativeFilter",
    "GraphSettings",
    "KMeansSettings",
    "PairSource",
    "Prompts",
    "RetrievalSet",
    "SentenceTransformerSurrogate",
    "TfidfSurrogate",
    "batch_statistics",
    "check_pairs",
    "cluster_pairs",
    "docstring_pairs",
    "docstring_split",
    "find_communities",
    "format_statistics",
    "load_pairs",
    "load_retrieval_set",
    "load_sources",
    "prepare_batch_plan",
    "retrieval_set_from_pairs",
    "sample_documents",
    "save_checkpoint",
    "save_retrieval_set",
    "save_with_context",
    "sentence_transformers_batch_sampler",
    "write_inspection_page",
]
