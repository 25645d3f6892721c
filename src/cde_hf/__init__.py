"""cde-hf: contextual document embeddings for Hugging Face, text embeddings that know the corpus they are used on."""

from .lazy import lazy_names


__version__ = "0.1.0.dev0"

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
    "data": ["Prompts", "RetrievalSet", "docstring_split", "load_corpus", "load_pairs", "load_retrieval_set"],
    "hub": ["model_path", "save_checkpoint", "save_with_context"],
    "modeling": ["CDEConfig", "CDEModel", "Context", "sample_documents"],
    "onnx_export": ["export_onnx"],
    "publishing": ["push_to_hub"],
    "retrieval": [
        "BM25",
        "ContextualIndex",
        "ContextualModelEmbedder",
        "Evaluation",
        "QdrantIndex",
        "SentenceTransformerEmbedder",
        "context_report",
        "contextualize",
        "encode_corpus",
        "evaluate",
        "get_context",
        "make_model_meta",
        "set_context",
    ],
    "trainer": ["ContextualContrastiveTrainer", "ContextualTrainingArguments", "filtered_info_nce", "run_training"],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _PUBLIC_NAMES)
