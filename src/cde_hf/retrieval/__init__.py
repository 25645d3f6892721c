"""Search and evaluation: indexes of a corpus, contexts of models, and scores on retrieval sets."""

from .bm25 import BM25
from .context_report import ContextEffect, ContextReport, context_report
from .contextualize import ContextualizedSentenceTransformer, FrequencyPoolingEmbedder, contextualize
from .corpora import load_corpus, load_documents
from .corpus_encoding import EncodedCorpus, encode_corpus
from .drift import Drift
from .evaluation import CONTEXTS, evaluate
from .evaluation_result import Evaluation
from .index import ContextualIndex
from .mteb_models import make_model_meta
from .qdrant import QdrantIndex
from .search import Ranking, search_vectors
from .significance import Comparison, compare_scores
from .storage import SearchHit
from .systems import (
    CDEEmbedder,
    ContextualEmbedder,
    Embedder,
    Ranker,
    RememberingEmbedder,
    SentenceTransformerEmbedder,
    is_contextual,
)
from .vector_origin import VectorOrigin, vector_origin
from .whitening import WhitenedEmbedder


__all__ = [
    "BM25",
    "CONTEXTS",
    "CDEEmbedder",
    "Comparison",
    "ContextEffect",
    "ContextReport",
    "ContextualEmbedder",
    "ContextualIndex",
    "ContextualizedSentenceTransformer",
    "Drift",
    "Embedder",
    "EncodedCorpus",
    "Evaluation",
    "FrequencyPoolingEmbedder",
    "QdrantIndex",
    "Ranker",
    "Ranking",
    "RememberingEmbedder",
    "SearchHit",
    "SentenceTransformerEmbedder",
    "VectorOrigin",
    "WhitenedEmbedder",
    "compare_scores",
    "context_report",
    "contextualize",
    "encode_corpus",
    "evaluate",
    "is_contextual",
    "load_corpus",
    "load_documents",
    "make_model_meta",
    "search_vectors",
    "vector_origin",
]
