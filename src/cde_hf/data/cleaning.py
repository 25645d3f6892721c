"""What makes a row a good pair, how many rows were not, and whether a dataset holds pairs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset, LargeList, List

from .sources import expect_dataset, is_text


PAIR_COLUMNS = ("query", "document", "negatives", "domain")


class BadRowError(ValueError):
    """
    Raised for a row that makes no pair.

    Args:
        kind (`str`):
            What is wrong with it: `"null"`, `"wrong_type"`, `"empty"`, `"not_unicode"`, `"null_negative"`,
            `"wrong_type_negative"`, `"empty_negative"` or `"negative_is_document"`.
    """

    def __init__(self, kind: str):
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class CleaningReport:
    """
    How many rows were read and how many of them were bad.

    Args:
        num_rows (`int`):
            Number of rows read.
        num_bad_rows (`Mapping[str, int]`):
            Number of bad rows of each kind. The kinds are those in [`BadRowError`], plus `"duplicate"` for a query and
            document that occur earlier in the same domain.
        first_bad_rows (`Mapping[str, str]`):
            Location of the first bad row of each kind.
    """

    num_rows: int
    num_bad_rows: Mapping[str, int]
    first_bad_rows: Mapping[str, str]

    @property
    def num_pairs(self) -> int:
        """Number of rows that are good pairs."""
        return self.num_rows - sum(self.num_bad_rows.values())

    def __str__(self) -> str:
        counts = [
            f"{count:,} {kind.replace('_', ' ')} (first: {self.first_bad_rows[kind]})"
            for kind, count in sorted(self.num_bad_rows.items())
        ]
        found = "; ".join(counts) or "none"
        return f"{self.num_rows - self.num_pairs:,} of {self.num_rows:,} rows are bad: {found}."


def make_pair(
    row: Mapping[str, Any], columns: Mapping[str, Sequence[str]], *, default_domain: str | None
) -> dict[str, Any]:
    """
    Makes the pair of a row, or raises a [`BadRowError`].

    Args:
        row (`Mapping[str, Any]`):
            Row of a source.
        columns (`Mapping[str, Sequence[str]]`):
            The source's columns for each of ours. Without `domain` if it is not read.
        default_domain (`str`, *optional*):
            Domain of rows without one.

    Returns:
        `dict[str, Any]`: `query`, `document`, `negatives` and `domain`.

    Example:

    ```python
    >>> columns = {"query": ["question"], "document": ["document"], "negatives": ["negatives"]}
    >>> make_pair({"question": "Who barks?", "document": "A dog barks."}, columns, default_domain="pets")
    {'query': 'Who barks?', 'document': 'A dog barks.', 'negatives': [], 'domain': 'pets'}

    ```
    """
    query = _expect_text(row.get(columns["query"][0]))
    document = _expect_text(row.get(columns["document"][0]))
    domain = row.get(columns["domain"][0]) if "domain" in columns else None
    negatives = _find_negatives(row, columns["negatives"], document)
    domain = _expect_text(default_domain if domain is None else domain)
    try:
        "".join((query, document, domain, *negatives)).encode()
    except UnicodeEncodeError as error:
        raise BadRowError("not_unicode") from error
    return {"query": query, "document": document, "negatives": negatives, "domain": domain}


def check_pairs(dataset: Dataset) -> None:
    """
    Checks that a dataset holds pairs, and raises an error otherwise.

    The columns `query` and `document` must hold texts, and so must an optional column `domain`. An optional column
    `negatives` must hold lists of texts. Other columns are ignored. Only types are checked; [`load_pairs`] reads rows.

    Args:
        dataset (`datasets.Dataset`):
            The dataset to check.

    Example:

    ```python
    >>> from datasets import Dataset
    >>> check_pairs(Dataset.from_dict({"query": ["Who barks?"], "document": ["A dog barks."]}))

    ```
    """
    expect_dataset(dataset, "dataset")
    missing = [name for name in ("query", "document") if name not in dataset.column_names]
    if missing:
        raise ValueError(
            f"The dataset has no column {missing}; it has {dataset.column_names}. Rename its columns, or read it with "
            "`load_pairs(dataset, columns=...)`."
        )
    for name in ("query", "document", "domain"):
        if name in dataset.column_names and not is_text(dataset.features[name]):
            raise ValueError(
                f"The column `{name}` must hold texts, got {dataset.features[name]}. Cast it, or read the "
                "dataset with `load_pairs`, which drops rows that are not texts."
            )
    if "negatives" in dataset.column_names and not _is_list_of_texts(dataset.features["negatives"]):
        raise ValueError(
            f"The column `negatives` must hold lists of texts, got {dataset.features['negatives']}. Read the dataset "
            "with `load_pairs`, which takes single texts too."
        )
    if len(dataset) == 0:
        raise ValueError("The dataset has no rows, at least one pair was expected. Check how it was filtered.")


def pair_digest(pair: Mapping[str, Any]) -> int:
    """Hashes the domain, query and document of a pair to 64 bits, to find duplicates."""
    text = "\0".join((pair["domain"], pair["query"], pair["document"]))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _is_list_of_texts(feature: Any) -> bool:
    return isinstance(feature, List | LargeList) and is_text(feature.feature)


def _find_negatives(row: Mapping[str, Any], columns: Sequence[str], document: str) -> list[str]:
    values = [row.get(column) for column in columns]
    if len(columns) == 1:
        negatives = values[0] if values[0] is not None else []
        values = [negatives] if isinstance(negatives, str) else negatives
    if not isinstance(values, list):
        raise BadRowError("wrong_type_negative")
    for negative in values:
        _expect_text(negative, "_negative")
        if negative == document:
            raise BadRowError("negative_is_document")
    return values


def _expect_text(value: Any, kind_ending: str = "") -> str:
    if value is None:
        raise BadRowError(f"null{kind_ending}")
    if not isinstance(value, str):
        raise BadRowError(f"wrong_type{kind_ending}")
    if not value or value.isspace():
        raise BadRowError(f"empty{kind_ending}")
    return value


__all__ = ["PAIR_COLUMNS", "BadRowError", "CleaningReport", "check_pairs", "make_pair", "pair_digest"]
