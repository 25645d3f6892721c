"""64-bit hashes of the texts of a data set: they find equal texts, and tell whether a plan belongs to the data."""

import hashlib
from collections.abc import Iterable

import numpy as np
import xxhash
from datasets import Dataset
from tqdm.auto import tqdm


_BLOCK_SIZE = 10_000


def hash_text(text: str) -> int:
    """The hash of one text, the same in every process."""
    return xxhash.xxh3_64_intdigest(text.encode())


def hash_pairs(dataset: Dataset) -> np.ndarray:
    """
    Hashes of all queries and documents.

    Returns:
        `np.ndarray` of shape `(num_pairs, 2)`: Hash of the query and of the document of each pair.
    """
    hashes = np.empty((len(dataset), 2), dtype=np.uint64)
    columns = dataset.select_columns(["query", "document"])
    for start in tqdm(
        range(0, len(dataset), _BLOCK_SIZE), desc="Hash texts", unit="block", disable=len(dataset) < 100_000
    ):
        block = columns[start : start + _BLOCK_SIZE]
        stop = start + len(block["query"])
        hashes[start:stop, 0] = [hash_text(text) for text in block["query"]]
        hashes[start:stop, 1] = [hash_text(text) for text in block["document"]]
    return hashes


def hash_negatives(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """
    Hashes of all hard negatives.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Place of each pair's first negative among all, of shape `(num_pairs + 1,)`,
        and the hashes, of shape `(num_negatives,)`.
    """
    negatives = dataset.select_columns(["negatives"])
    counts, hashes = [], []
    for start in range(0, len(negatives), _BLOCK_SIZE):
        for row in negatives[start : start + _BLOCK_SIZE]["negatives"]:
            counts.append(len(row))
            hashes.extend(hash_text(text) for text in row)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.array(hashes, dtype=np.uint64)


def data_fingerprint(arrays: Iterable[np.ndarray], domains: Iterable[str]) -> str:
    """A short name for the contents of a data set: its hashes, and the names of its domains."""
    digest = hashlib.blake2b("\n".join(domains).encode(), digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


__all__ = ["data_fingerprint", "hash_negatives", "hash_pairs", "hash_text"]
