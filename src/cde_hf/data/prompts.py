"""Prompts: prefixes of queries and documents that tell the model which task the text is for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


SEARCH_QUERY = "search_query: "
SEARCH_DOCUMENT = "search_document: "


@dataclass(frozen=True)
class Prompts:
    """
    Prompts of queries and documents, and of the other tasks that a model was trained on.

    Args:
        query (`str`, *optional*):
            Put before every query. Defaults to `"search_query: "`.
        document (`str`, *optional*):
            Put before every document and negative. Defaults to `"search_document: "`.
        classification (`str`, *optional*):
            Prompt for classification. Only saved with a model; training here does not use it.
        clustering (`str`, *optional*):
            Prompt for clustering. Also only saved with a model.

    Example:

    ```python
    >>> Prompts().apply({"query": ["Who barks?"], "document": ["A dog."]})
    {'query': ['search_query: Who barks?'], 'document': ['search_document: A dog.']}

    ```
    """

    query: str = SEARCH_QUERY
    document: str = SEARCH_DOCUMENT
    classification: str | None = None
    clustering: str | None = None

    def apply(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """
        Puts the prompts before `query`, `document` and `negatives`.

        Args:
            rows (`Mapping[str, list]`):
                Columns of a few pairs, as `dataset[:8]` or a batched `Dataset.map` returns them.

        Returns:
            `dict[str, list]`: The same columns.
        """
        prompted = dict(rows)
        prompted["query"] = [self.query + text for text in rows["query"]]
        prompted["document"] = [self.document + text for text in rows["document"]]
        if "negatives" in rows:
            prompted["negatives"] = [[self.document + text for text in texts] for texts in rows["negatives"]]
        return prompted

    def for_sentence_transformers(self) -> dict[str, str]:
        """Returns the `prompts` of a sentence-transformers model, without prompts that are `None`."""
        return {name: prompt for name, prompt in asdict(self).items() if prompt is not None}


NO_PROMPTS = Prompts(query="", document="")


__all__ = ["NO_PROMPTS", "SEARCH_DOCUMENT", "SEARCH_QUERY", "Prompts"]
