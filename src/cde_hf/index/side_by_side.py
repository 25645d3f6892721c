"""
What an index finds beside what its model finds alone, and which terms make the difference.

1. The model alone has no context, no corpus part and no BM25. Its vectors are not in the index, so the candidates are
   encoded when they are needed: the best 100 documents of hybrid search, and those of search by vectors.
2. The score of a hit is its dense part's share and what each term of the query adds: in BM25, and in the corpus part,
   whose inner product is a sum over the terms of the query. Terms that are pieces of one word are shown as this word.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..contextual_models import get_context, without_context
from ..data import check_counts
from ..modeling.term_vectors import count_terms, embed_terms, parts_of_terms, term_features
from ..vectors import SentenceTransformerEmbedder
from .contextual_index import ContextualIndex
from .state import SearchHit


NUM_CANDIDATES = 100
_NOTHING = 1e-4


@dataclass(frozen=True)
class ExplainedHit:
    """
    A document that an index found.

    Args:
        hit (`SearchHit`):
            The document and its score.
        plain_rank (`int`):
            Its rank for the model alone, among the candidates.
        terms (`dict[str, float]`):
            What each word of the query adds to its score, the largest first.
    """

    hit: SearchHit
    plain_rank: int
    terms: dict[str, float]


class SideBySide:
    """
    Searches an index and with its model alone.

    Args:
        index (`ContextualIndex`):
            The index.
    """

    def __init__(self, index: ContextualIndex):
        self.index = index
        self._plain = SentenceTransformerEmbedder(without_context(index.model), "the model alone")

    def search(self, query: str, *, depth: int) -> tuple[list[ExplainedHit], list[SearchHit]]:
        """Returns what the index finds, and what its model alone finds among the candidates."""
        check_counts(depth=depth)
        hits, *others = (
            self.index.search(query, depth=max(depth, NUM_CANDIDATES), hybrid=hybrid) for hybrid in (None, False)
        )
        candidates = list({hit.document_id: hit for found in (hits, *others) for hit in found}.values())
        texts = [hit.text for hit in candidates if hit.text is not None]
        if len(texts) < len(candidates):
            raise ValueError(
                "The index has vectors without texts, so its model alone cannot be shown. Build the index from texts."
            )
        vectors = self._plain.embed_documents(texts)
        scores = vectors @ self._plain.embed_queries([query])[0]
        order = np.argsort(-scores, kind="stable").tolist()
        plain = [SearchHit(candidates[row].document_id, float(scores[row]), candidates[row].text) for row in order]
        ranks = {hit.document_id: rank for rank, hit in enumerate(plain, start=1)}
        terms = explain(self.index, query, hits[:depth])
        explained = [
            ExplainedHit(hit, ranks[hit.document_id], each) for hit, each in zip(hits[:depth], terms, strict=True)
        ]
        return explained, plain[:depth]


def explain(index: ContextualIndex, query: str, hits: Sequence[SearchHit]) -> list[dict[str, float]]:
    """
    Returns what each word of a query adds to the scores of hits. The rest of a score comes from the dense part.

    Args:
        index (`ContextualIndex`):
            The index.
        query (`str`):
            The query.
        hits (`Sequence[SearchHit]`):
            Hits with their texts.
    """
    ((term_ids, counts),) = count_terms(index.model.tokenizer, [query])
    added = np.zeros((len(term_ids), len(hits)))
    context = get_context(index.model)
    if context is not None and context.terms is not None:
        features = term_features(index.model.tokenizer, [hit.text or "" for hit in hits], prompt=None, task=None)
        terms = context.terms.to(torch.device("cpu"))
        documents = embed_terms(terms, features["term_ids"], features["term_counts"])
        parts = parts_of_terms(terms, term_ids.unsqueeze(0), counts.unsqueeze(0))[0]
        added += terms.weight / (1 + terms.weight) * (parts @ documents.T).numpy()
    state = index._state
    if state.terms is not None:
        added += state.terms.explain(term_ids.numpy(), [state.row_of(hit.document_id) for hit in hits])
    of_words: dict[str, np.ndarray] = {}
    for name, scores in zip(_words(index.model.tokenizer, query, term_ids.tolist()), added, strict=True):
        of_words[name] = of_words.get(name, 0) + scores
    return [
        dict(sorted(column.items(), key=lambda item: -item[1]))
        for column in (
            {name: float(scores[place]) for name, scores in of_words.items() if abs(scores[place]) > _NOTHING}
            for place in range(len(hits))
        )
    ]


def _words(tokenizer: PreTrainedTokenizerBase, query: str, term_ids: Sequence[int]) -> list[str]:
    """The word of the query that each of its terms is or belongs to; the first one, if it belongs to several."""
    words: dict[int, str] = {}
    encoded = tokenizer(query, add_special_tokens=False, verbose=False)
    if tokenizer.is_fast:  # others do not know where a word begins
        for token_id, word in zip(encoded["input_ids"], encoded.word_ids(), strict=True):
            if word is not None:
                words.setdefault(token_id, query[slice(*encoded.word_to_chars(word))].strip())
    tokens = tokenizer.convert_ids_to_tokens(list(term_ids))
    return [words.get(term_id) or token for term_id, token in zip(term_ids, tokens, strict=True)]


__all__ = ["ExplainedHit", "SideBySide", "explain"]
