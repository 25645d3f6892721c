"""Prompts: the texts that are put before queries and documents to tell the model what they are for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


SEARCH_QUERY = "search_query: "
SEARCH_DOCUMENT = "search_document: "
CLASSIFICATION = "classification: "
CLUSTERING = "clustering: "


@dataclass(frozen=True)
class Prompts:
    """
    Prompts of queries and documents, which may differ from domain to domain.

    Args:
        query (`str`, *optional*, defaults to `"search_query: "`):
            Put before every query.
        document (`str`, *optional*, defaults to `"search_document: "`):
            Put before every document and negative.
        domains (`Mapping[str, tuple[str, str]]`, *optional*):
            Domains that have prompts of their own: for each the one of the query and the one of the document.

    Example:

    ```python
    >>> prompts = Prompts(domains={"intents": (CLASSIFICATION, CLASSIFICATION)})
    >>> prompts.for_domain("intents")
    ('classification: ', 'classification: ')
    >>> prompts.apply({"query": ["Who barks?"], "document": ["A dog."], "domain": ["pets"]})
    {'query': ['search_query: Who barks?'], 'document': ['search_document: A dog.'], 'domain': ['pets']}

    ```
    """

    query: str = SEARCH_QUERY
    document: str = SEARCH_DOCUMENT
    domains: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self):
        for domain, prompts in self.domains.items():
            if isinstance(prompts, str) or len(prompts) != 2:
                raise ValueError(
                    f"The domain `{domain}` must have two prompts, of the query and of the document, got {prompts!r}. "
                    "Give both, even if they are the same."
                )

    def for_domain(self, domain: str | None) -> tuple[str, str]:
        """The prompts of the query and of the document in a domain."""
        query, document = self.domains.get(domain, (self.query, self.document))
        return query, document

    def apply(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """
        Rows with the prompts put before `query`, `document` and `negatives`.

        Args:
            rows (`Mapping[str, list]`):
                Columns of a few pairs, as `dataset[:8]` or a batched `Dataset.map` gives them.

        Returns:
            `dict[str, list]`: The same columns.
        """
        domains = rows.get("domain", [None] * len(rows["query"]))
        prompts = [self.for_domain(domain) for domain in domains]
        prompted = dict(rows)
        prompted["query"] = [prompt + text for (prompt, _), text in zip(prompts, rows["query"], strict=True)]
        prompted["document"] = [prompt + text for (_, prompt), text in zip(prompts, rows["document"], strict=True)]
        if "negatives" in rows:
            prompted["negatives"] = [
                [prompt + text for text in texts]
                for (_, prompt), texts in zip(prompts, rows["negatives"], strict=True)
            ]
        return prompted

    def for_sentence_transformers(self) -> dict[str, str]:
        """The `prompts` of a sentence-transformers model, which does not know domains."""
        return {
            "query": self.query,
            "document": self.document,
            "classification": CLASSIFICATION,
            "clustering": CLUSTERING,
        }


__all__ = ["CLASSIFICATION", "CLUSTERING", "SEARCH_DOCUMENT", "SEARCH_QUERY", "Prompts"]
