"""64-bit hashes of the texts of a data set: they find equal texts, and tell whether a plan belongs to the data."""

import hashlib

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


def data_fingerprint(text_hashes: np.ndarray, domain_ids: np.ndarray) -> str:
    """A short name for the contents of a data set."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(np.ascontiguousarray(text_hashes).data)
    digest.update(np.ascontiguousarray(domain_ids).data)
    return digest.hexdigest()


__all__ = ["data_fingerprint", "hash_pairs", "hash_text"]
