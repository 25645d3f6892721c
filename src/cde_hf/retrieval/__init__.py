"""Evaluation on retrieval sets, training-free adaptation to a corpus, the index, and bulk encoding."""

from ..lazy import lazy_names


__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "bm25": ["BM25"],
        "context_effects": ["ContextEffect", "ContextReport", "context_report"],
        "contextualized_models": ["ContextualizedSentenceTransformer", "contextualize"],
        "corpus_encoding": ["EncodedCorpus", "encode_corpus"],
        "drift": ["Drift"],
        "evaluation": ["CONTEXTS", "evaluate"],
        "evaluation_result": ["Evaluation", "Row"],
        "index": ["ContextualIndex"],
        "model_contexts": ["find_cde_model", "find_contextual_module", "get_context", "set_context"],
        "mteb_models": ["make_model_meta"],
        "origins": ["VectorOrigin", "vector_origin"],
        "qdrant": ["QdrantIndex"],
        "search": ["Ranking", "search_vectors"],
        "significance": ["Comparison", "compare_scores"],
        "storage": ["SearchHit"],
        "systems": [
            "ContextualEmbedder",
            "ContextualModelEmbedder",
            "Embedder",
            "Ranker",
            "RememberingEmbedder",
            "SentenceTransformerEmbedder",
        ],
        "whitening": ["WhitenedEmbedder"],
    },
)
