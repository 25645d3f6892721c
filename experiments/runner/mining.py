"""Hard negatives from the vectors of a batch plan: the documents just below the positive one."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from datasets import Dataset, List, Value

from cde_hf import BatchPlan, FalseNegativeFilter


def mine_negatives(pairs: Dataset, plan: BatchPlan, num_negatives: int) -> Dataset:
    """
    Gives each pair the documents of its domain that score highest for its query among those that score below its own.

    What the filter without a margin takes for a right answer is no negative: a document that scores like the positive
    one, an equal text, the document of an equal query.

    Args:
        pairs (`datasets.Dataset`):
            Pairs without negatives.
        plan (`BatchPlan`):
            Their plan, whose vectors are compared.
        num_negatives (`int`):
            Negatives of a pair, of different texts. A pair has fewer if its domain has no more.

    Returns:
        `datasets.Dataset`: The pairs with a column `negatives`.
    """
    documents = pairs["document"][:]
    negatives: list[list[str]] = [[] for _ in documents]
    for domain in np.unique(plan.domain_ids):
        rows = np.flatnonzero(plan.domain_ids == domain)
        scores, is_answer = FalseNegativeFilter(plan)(rows)
        np.fill_diagonal(is_answer, True)
        scores = np.where(is_answer, -np.inf, scores)
        order = np.argsort(-scores, axis=1, kind="stable")
        for place, row in enumerate(rows):
            num_candidates = len(rows) - is_answer[place].sum()
            texts = (documents[rows[other]] for other in order[place, :num_candidates])
            negatives[row] = list(islice(_different(texts), num_negatives))
    return pairs.add_column("negatives", negatives, feature=List(Value("string")))


def _different(texts: Iterable[str]) -> Iterator[str]:
    seen = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text
