"""
Hybrid search: the cosines of a model, and BM25 on its tokens.

1. BM25's score of a document is divided by what no score of the query can exceed, so it is between 0 and 1.
2. Its weight is proportional to the standard deviation of the cosines between documents of the corpus, as the weight
   of the corpus part is. Encoders differ in how far their cosines spread.
3. Both are added.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..modeling import sample_documents
from ..modeling.corpus_part import NUM_CALIBRATION_DOCUMENTS
from ..modeling.term_vectors import count_documents
from ..vectors import check_vectors
from .bm25 import Postings, TermStatistics, lexical_blocks, query_terms
from .exact_search import Ranking, best_documents
from .systems import ContextualEmbedder, Embedder


HYBRID_WEIGHT = 5.0


class Hybrid:
    """
    A [`Ranker`] that adds BM25 to the scores of an embedder, as [`ContextualIndex.search`] does.

    Args:
        embedder (`Embedder` or `ContextualEmbedder`):
            Embeds the texts. With a contextual one, there is a row for each context.
        tokenizer (`PreTrainedTokenizerBase`):
            The tokenizer of its model, whose tokens are the terms of BM25.
        name (`str`, *optional*):
            Name of its row in a table. Defaults to the embedder's name and the word hybrid.
    """

    def __init__(self, embedder: Embedder, tokenizer: PreTrainedTokenizerBase, name: str | None = None):
        self.embedder = embedder
        self.tokenizer = tokenizer
        self.name = name or f"{embedder.name} hybrid"

    @property
    def takes_context(self) -> bool:
        """Whether the embedder does."""
        return isinstance(self.embedder, ContextualEmbedder)

    def set_context(self, documents: Sequence[str] | None) -> None:
        """Sets or removes the context of the embedder. BM25 always knows the corpus that it searches."""
        if isinstance(self.embedder, ContextualEmbedder):
            self.embedder.set_context(documents)

    def rank(self, queries: Sequence[str], documents: Sequence[str], *, depth: int) -> Ranking:
        """
        Ranks the documents.

        Args:
            queries (`Sequence[str]`):
                The queries.
            documents (`Sequence[str]`):
                The complete corpus.
            depth (`int`):
                Number of documents to return for each query.
        """
        vectors = check_vectors(self.embedder.embed_queries(queries), f"{self.name}'s queries", num_texts=len(queries))
        terms, counts = query_terms(self.tokenizer, queries), count_documents(self.tokenizer, documents)
        statistics = Postings.of(counts).statistics
        sample = sample_documents(documents, NUM_CALIBRATION_DOCUMENTS)
        weight = lexical_weight(self._embed(sample, vectors.shape[1]))
        scales = np.array([[lexical_scale(statistics, each, weight)] for each in terms], dtype=np.float32)

        def score_blocks() -> Iterator[np.ndarray]:
            for scores, block in lexical_blocks(terms, counts, statistics):
                yield vectors @ self._embed(documents[block], vectors.shape[1]).T + scales * scores

        return best_documents(score_blocks(), depth=depth)

    def _embed(self, documents: Sequence[str], width: int) -> np.ndarray:
        name = f"{self.name}'s documents"
        return check_vectors(self.embedder.embed_documents(documents), name, num_texts=len(documents), width=width)


def lexical_weight(vectors: np.ndarray) -> float:
    """
    How much the highest possible BM25 score of a query adds to the score of a document.

    Args:
        vectors (`np.ndarray` of shape `(num_documents, dim)`):
            The vectors of some documents of the corpus.
    """
    cosines = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    return HYBRID_WEIGHT * float(cosines.std()) if len(cosines) else 0.0


def lexical_scale(statistics: TermStatistics, term_ids: np.ndarray, weight: float) -> float:
    """What to multiply the BM25 scores of a query of some terms with."""
    return weight / max(statistics.bound(term_ids), float(np.finfo(np.float32).tiny))


__all__ = ["HYBRID_WEIGHT", "Hybrid", "lexical_scale", "lexical_weight"]
