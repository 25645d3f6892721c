"""Holds some queries of the training pairs out, to test a model on them."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from .cleaning import check_pairs
from .corpora import Corpus, load_documents
from .retrieval_sets import RetrievalSet, retrieval_set_from_pairs


HELD_OUT = "held-out queries"
_MAX_DOCUMENTS = 1000
_ROWS_PER_BATCH = 10_000


def hold_out(
    dataset: Dataset, num_queries: int, *, corpus: Corpus | None = None, seed: int = 0
) -> tuple[Dataset, RetrievalSet]:
    """
    Splits pairs into pairs to train on and a retrieval set of other queries.

    A query is held out with all its pairs. Its documents may be answers of other queries in training, as they are
    known when a model is used.

    Args:
        dataset (`datasets.Dataset`):
            Pairs.
        num_queries (`int`):
            Number of queries to hold out.
        corpus (`Corpus`, *optional*):
            Documents to search, beside the answers. Defaults to the documents of the pairs.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the choice of queries and documents.

    Returns:
        `tuple[Dataset, RetrievalSet]`: The pairs that are left, in their order, and the retrieval set, which searches
        the answers, filled up to a thousand documents with a sample of the corpus.
    """
    check_pairs(dataset)
    generator = np.random.default_rng(seed)
    batches = dataset.with_format(None).select_columns(["query"]).iter(batch_size=_ROWS_PER_BATCH)
    texts = [query.strip() for batch in batches for query in batch["query"]]
    queries = list(dict.fromkeys(texts))
    if not 0 < num_queries < len(queries):
        raise ValueError(
            f"The data set has {len(queries)} different queries, so between 1 and {len(queries) - 1} of them can be "
            f"held out, not {num_queries}. Give more pairs."
        )
    chosen = {queries[index] for index in generator.choice(len(queries), num_queries, replace=False)}
    is_held_out = np.array([text in chosen for text in texts])
    rows = np.arange(len(dataset))
    tested = retrieval_set_from_pairs(HELD_OUT, dataset.select(rows[is_held_out]))
    documents = dataset["document"] if corpus is None else load_documents(corpus)
    return dataset.select(rows[~is_held_out]), _with_documents(tested, documents, generator)


def _with_documents(tested: RetrievalSet, documents: Sequence[str], generator: np.random.Generator) -> RetrievalSet:
    """Adds a sample of documents that are not in the set yet."""
    known = set(tested.corpus.values())
    places = generator.choice(len(documents), min(3 * _MAX_DOCUMENTS, len(documents)), replace=False)
    texts = dict.fromkeys(documents[int(place)].strip() for place in places)
    others = [text for text in texts if text and text not in known]
    added = {f"other{number}": text for number, text in enumerate(others[: max(0, _MAX_DOCUMENTS - len(known))])}
    return RetrievalSet(tested.name, tested.corpus | added, tested.queries, tested.qrels)


__all__ = ["HELD_OUT", "hold_out"]
