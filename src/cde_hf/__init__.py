"""cde-hf: contextual document embeddings for Hugging Face, text embeddings that know the corpus they are used on."""

from importlib import import_module
from typing import Any


__version__ = "0.1.0.dev0"

# Every public name under the module that defines it. Each is imported on first use, because torch takes seconds.
_PUBLIC_NAMES = {
    "batching": [
        "BatchPlan",
        "ClusteredBatchSampler",
        "FalseNegativeFilter",
        "SentenceTransformerSurrogate",
        "TfidfSurrogate",
        "prepare_batch_plan",
        "sentence_transformers_batch_sampler",
    ],
    "data": ["Prompts", "RetrievalSet", "docstring_split", "load_pairs", "load_retrieval_set"],
    "hub": ["model_path", "save_checkpoint", "save_with_context"],
    "modeling": ["CDEConfig", "CDEModel", "CorpusContext", "sample_documents"],
    "onnx_export": ["export_onnx"],
    "publishing": ["push_to_hub"],
    "retrieval": [
        "BM25",
        "CDEEmbedder",
        "ContextualIndex",
        "Evaluation",
        "FrequencyPoolingEmbedder",
        "QdrantIndex",
        "SentenceTransformerEmbedder",
        "context_report",
        "contextualize",
        "encode_corpus",
        "evaluate",
        "load_corpus",
        "make_model_meta",
    ],
    "trainer": ["ContextualContrastiveTrainer", "ContextualTrainingArguments", "filtered_info_nce", "run_training"],
}
_MODULE_OF = {name: module for module, names in _PUBLIC_NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
