"""Retrieval sets: a corpus, queries, and which documents answer them."""

from dataclasses import dataclass

from datasets import Dataset

from .dataset_checks import check_pairs


_ROWS_PER_BATCH = 1000


@dataclass(frozen=True)
class RetrievalSet:
    """
    A corpus to search, queries, and judgements of which documents answer them.

    Args:
        name (`str`):
            Name of the set.
        corpus (`dict[str, str]`):
            Text of each document by its id.
        queries (`dict[str, str]`):
            Text of each query by its id. Every query has a positive document.
        qrels (`dict[str, dict[str, int]]`):
            For each query id the grades of the judged documents by their ids. A grade above 0 makes a document
            positive.
    """

    name: str
    corpus: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]

    def __post_init__(self):
        if not self.queries:
            raise ValueError(
                f"`{self.name}` has no queries, but must have one with a positive document. Check its files."
            )
        if self.queries.keys() != self.qrels.keys():
            incomplete = sorted(self.queries.keys() ^ self.qrels.keys())[:5]
            raise ValueError(
                f"The queries {incomplete} of `{self.name}` have a text or judgements, but must have both. Add what "
                "is missing or leave them out."
            )
        for query_id, grades in self.qrels.items():
            unknown = grades.keys() - self.corpus.keys()
            if unknown:
                raise ValueError(
                    f"The judgements of query `{query_id}` of `{self.name}` name the documents {sorted(unknown)[:5]}, "
                    "which its corpus lacks. Add the documents or remove the judgements."
                )
            if not has_positive(grades):
                raise ValueError(
                    f"Query `{query_id}` of `{self.name}` has no document with a grade above 0. Leave the query out."
                )


def has_positive(grades: dict[str, int]) -> bool:
    """Whether any judged document is positive."""
    return any(grade > 0 for grade in grades.values())


def retrieval_set_from_pairs(name: str, dataset: Dataset) -> RetrievalSet:
    """
    A retrieval set of pairs: each distinct document once, each distinct query once, and all documents that a query is
    paired with positive. Texts are stripped of white space.

    Args:
        name (`str`):
            Name of the set.
        dataset (`datasets.Dataset`):
            Pairs, with the columns `query` and `document`.

    Returns:
        `RetrievalSet`: The set. Ids count up in the order of the pairs, `d0`, `d1`, … and `q0`, `q1`, …

    Example:

    ```python
    >>> from datasets import Dataset
    >>> rows = {"query": ["Who barks?", "Who barks?"], "document": ["A dog barks.", "Dogs bark."]}
    >>> retrieval_set_from_pairs("pets", Dataset.from_dict(rows)).qrels
    {'q0': {'d0': 1, 'd1': 1}}

    ```
    """
    check_pairs(dataset)
    document_ids: dict[str, str] = {}
    query_ids: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for batch in dataset.with_format(None).select_columns(["query", "document"]).iter(batch_size=_ROWS_PER_BATCH):
        for query, document in zip(batch["query"], batch["document"], strict=True):
            document_id = document_ids.setdefault(document.strip(), f"d{len(document_ids)}")
            query_id = query_ids.setdefault(query.strip(), f"q{len(query_ids)}")
            qrels.setdefault(query_id, {})[document_id] = 1
    return RetrievalSet(
        name,
        corpus={document_id: text for text, document_id in document_ids.items()},
        queries={query_id: text for text, query_id in query_ids.items()},
        qrels=qrels,
    )


__all__ = ["RetrievalSet", "has_positive", "retrieval_set_from_pairs"]
