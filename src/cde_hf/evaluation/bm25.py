"""BM25, the lexical baseline, with Lucene's formula and defaults."""

from collections.abc import Sequence
from typing import Any

import bm25s
import numpy as np

from .exact_search import Ranking


class BM25:
    """
    A [`Ranker`] that compares words: BM25 on lower-case words without English stop words and plural endings.

    Args:
        name (`str`, *optional*, defaults to `"BM25"`):
            Name of its row in a table.
        saturation (`float`, *optional*, defaults to `1.2`):
            How fast repetitions of a word saturate: BM25's `k1`.
        length_normalization (`float`, *optional*, defaults to `0.75`):
            How strongly long documents are penalised: BM25's `b`.

    Example:

    ```python
    >>> ranking = BM25().rank(["barking dogs"], ["The cat sleeps.", "A dog barks.", ""], depth=2)
    >>> ranking.document_indices.tolist()
    [[1, -1]]

    ```
    """

    def __init__(self, name: str = "BM25", *, saturation: float = 1.2, length_normalization: float = 0.75):
        self.name = name
        self.saturation = saturation
        self.length_normalization = length_normalization

    def rank(self, queries: Sequence[str], documents: Sequence[str], *, depth: int) -> Ranking:
        """
        Ranks the documents that share a word with a query.

        Args:
            queries (`Sequence[str]`):
                The queries.
            documents (`Sequence[str]`):
                The complete corpus. An empty document is never found.
            depth (`int`):
                Number of documents to return for each query.
        """
        shape = (len(queries), min(depth, len(documents)))
        tokens = _tokenize(documents)
        if not tokens.vocab:
            return Ranking(np.full(shape, -1), np.zeros(shape))
        index = bm25s.BM25(k1=self.saturation, b=self.length_normalization, method="lucene")
        index.index(tokens, show_progress=False)
        known_words = [
            [word for word in words if word in tokens.vocab] for words in _tokenize(queries, return_ids=False)
        ]
        results = index.retrieve(known_words, k=shape[1], show_progress=False)
        return Ranking(np.where(results.scores > 0, results.documents, -1), results.scores)


def _tokenize(texts: Sequence[str], *, return_ids: bool = True) -> Any:
    """Splits texts into words: a `bm25s.tokenization.Tokenized` with ids, or a list of words for each text."""
    return bm25s.tokenize(
        list(texts), stopwords="en", stemmer=_strip_plurals, return_ids=return_ids, show_progress=False
    )


def _strip_plurals(words: list[str]) -> list[str]:
    return [strip_plural(word) for word in words]


def strip_plural(word: str) -> str:
    """
    Removes the plural ending of an English word by the three rules of Harman's "S stemmer" (1991).

    Example:

    ```python
    >>> [strip_plural(word) for word in ("queries", "corpora", "vectors", "glass", "corpus", "bees")]
    ['query', 'corpora', 'vector', 'glass', 'corpus', 'bee']

    ```
    """
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


__all__ = ["BM25", "strip_plural"]
