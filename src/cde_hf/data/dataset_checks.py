"""Checks of datasets that users hand in, made before any work is done with them."""

from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, LargeList, List, Value


_TEXT_TYPES = ("string", "large_string", "string_view")


def expect_dataset(value: Any, argument: str) -> None:
    """Raises a `TypeError` that guesses the intent, unless the value is a `datasets.Dataset`."""
    if isinstance(value, Dataset):
        return
    received = f"`{argument}` must be a `datasets.Dataset`, got a `{type(value).__name__}`"
    if isinstance(value, DatasetDict | IterableDatasetDict):
        split = "train" if "train" in value else next(iter(value), "train")
        raise TypeError(f"{received} with the splits {list(value)}. Did you mean `dataset['{split}']`?")
    if isinstance(value, IterableDataset):
        raise TypeError(f"{received}. Load it without `streaming=True`.")
    raise TypeError(f"{received}. `load_pairs` makes one of files, `Dataset.from_dict` of lists.")


def check_pairs(dataset: Dataset) -> None:
    """
    Raises an error unless a dataset holds pairs: texts in `query` and `document`, and if there are such columns, lists
    of texts in `negatives` and texts in `domain`. Other columns are no fault. The rows themselves are not read;
    [`load_pairs`] does that.

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
        if name in dataset.column_names and not _is_text(dataset.features[name]):
            raise ValueError(
                f"The column `{name}` must hold texts, got {dataset.features[name]}. Cast it, or read the "
                "dataset with `load_pairs`, which leaves out what is no text."
            )
    if "negatives" in dataset.column_names and not _is_list_of_texts(dataset.features["negatives"]):
        raise ValueError(
            f"The column `negatives` must hold lists of texts, got {dataset.features['negatives']}. Read the dataset "
            "with `load_pairs`, which takes single texts too."
        )
    if len(dataset) == 0:
        raise ValueError("The dataset has no rows, at least one pair was expected. Check how it was filtered.")


def _is_text(feature: Any) -> bool:
    return isinstance(feature, Value) and feature.dtype in _TEXT_TYPES


def _is_list_of_texts(feature: Any) -> bool:
    return isinstance(feature, List | LargeList) and _is_text(feature.feature)


__all__ = ["check_pairs", "expect_dataset"]
