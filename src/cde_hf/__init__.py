"""cde-hf: contextual document embeddings for Hugging Face, text embeddings that know the corpus they are used on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .batching import (
    BatchPlan,
    ClusteredBatchSampler,
    FalseNegativeFilter,
    KMeansSettings,
    SentenceTransformerSurrogate,
    TfidfSurrogate,
    batch_statistics,
    cluster_pairs,
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
    load_corpus,
    load_documents,
    load_pairs,
    load_retrieval_set,
    load_sources,
    retrieval_set_from_pairs,
    save_retrieval_set,
)
from .hub import model_path, save_biencoder, save_checkpoint, save_with_context
from .launching import relaunch_on_cpus
from .modeling import CDEConfig, CDEModel, CDEOutput, ContextBlock, CorpusContext, sample_documents
from .onnx_export import export_onnx


if TYPE_CHECKING:
    from .model_card import CardFacts, make_model_card
    from .publishing import push_to_hub
    from .retrieval import (
        BM25,
        CDEEmbedder,
        ContextualIndex,
        Drift,
        EncodedCorpus,
        Evaluation,
        FrequencyPoolingEmbedder,
        QdrantIndex,
        SearchHit,
        SentenceTransformerEmbedder,
        VectorOrigin,
        context_report,
        contextualize,
        encode_corpus,
        evaluate,
        make_model_meta,
        vector_origin,
    )
    from .trainer import (
        ContextualContrastiveTrainer,
        ContextualTrainingArguments,
        GradientCache,
        filtered_info_nce,
        find_last_checkpoint,
        run_training,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "BM25",
    "BatchPlan",
    "CDEConfig",
    "CDEEmbedder",
    "CDEModel",
    "CDEOutput",
    "CardFacts",
    "ClusteredBatchSampler",
    "ContextBlock",
    "ContextualContrastiveTrainer",
    "ContextualTrainingArguments",
    "ContextualIndex",
    "CorpusContext",
    "Drift",
    "EncodedCorpus",
    "Evaluation",
    "FalseNegativeFilter",
    "FrequencyPoolingEmbedder",
    "GradientCache",
    "KMeansSettings",
    "PairSource",
    "Prompts",
    "QdrantIndex",
    "RetrievalSet",
    "SearchHit",
    "SentenceTransformerEmbedder",
    "SentenceTransformerSurrogate",
    "TfidfSurrogate",
    "VectorOrigin",
    "batch_statistics",
    "check_pairs",
    "cluster_pairs",
    "context_report",
    "contextualize",
    "docstring_pairs",
    "docstring_split",
    "encode_corpus",
    "evaluate",
    "filtered_info_nce",
    "export_onnx",
    "find_last_checkpoint",
    "format_statistics",
    "load_corpus",
    "load_documents",
    "load_pairs",
    "load_retrieval_set",
    "load_sources",
    "make_model_card",
    "make_model_meta",
    "model_path",
    "prepare_batch_plan",
    "relaunch_on_cpus",
    "push_to_hub",
    "retrieval_set_from_pairs",
    "run_training",
    "sample_documents",
    "save_biencoder",
    "save_checkpoint",
    "save_retrieval_set",
    "save_with_context",
    "sentence_transformers_batch_sampler",
    "vector_origin",
    "write_inspection_page",
]

# Where to find the names that are imported when they are asked for: sentence-transformers alone takes seconds.
_LATE_NAMES = {
    "CardFacts": "model_card",
    "ContextualContrastiveTrainer": "trainer",
    "ContextualTrainingArguments": "trainer",
    "GradientCache": "trainer",
    "filtered_info_nce": "trainer",
    "find_last_checkpoint": "trainer",
    "make_model_card": "model_card",
    "push_to_hub": "publishing",
    "run_training": "trainer",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_LATE_NAMES.get(name, 'retrieval')}"), name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
