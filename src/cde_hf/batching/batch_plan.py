"""The batch plan: the result of clustering on disk, which the sampler and the filter read; and hashes of texts."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from datasets import Dataset

from ..files import FolderKind
from ..messages import count_of


BATCH_PLAN = FolderKind("batch plan", 4, "Make one with `cde-hf prepare DATA PLAN`, in a new folder.")

_NUM_CHECKED_ROWS = 1_000
_BLOCK_SIZE = 10_000


@dataclass(frozen=True, eq=False, repr=False)
class BatchPlan:
    """
    Clusters, surrogate vectors and statistics of the pairs of one data set, in a folder made by `cde-hf prepare`.

    The arrays are memory-mapped, so a plan of any size opens at once and takes little memory.

    Args:
        folder (`Path`):
            Folder of the plan.
        manifest (`dict`):
            Data fingerprint, domains, surrogates, settings and statistics.
    """

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = False) -> "BatchPlan":
        """
        Opens a plan. Refuses a plan that is corrupt, incomplete or of another version.

        Args:
            folder (`str` or `Path`):
                Folder of the plan.
            verify (`bool`, *optional*, defaults to `False`):
                Whether to read all files and compare their hashes, not only their sizes.
        """
        return cls(Path(folder), BATCH_PLAN.read(folder, verify=verify))

    def __len__(self) -> int:
        return self.manifest["num_pairs"]

    def __repr__(self) -> str:
        num_clusters = self.manifest["statistics"]["num_clusters"]
        return f"BatchPlan({str(self.folder)!r}, {count_of(len(self), 'pair')}, {count_of(num_clusters, 'cluster')})"

    @property
    def domains(self) -> list[str]:
        """Names of the domains."""
        return self.manifest["domains"]

    @cached_property
    def domain_ids(self) -> np.ndarray:
        """Domain of each pair, of shape `(num_pairs,)`."""
        return self._array("domain_ids")

    @cached_property
    def cluster_ids(self) -> np.ndarray:
        """
        Cluster of each pair, of shape `(num_pairs,)`. No cluster has pairs of two domains. In a domain, clusters with
        neighbouring numbers are close.
        """
        return self._array("cluster_ids")

    @cached_property
    def centroids(self) -> np.ndarray:
        """Centroids, of shape `(num_clusters, 2 * dim)`."""
        return self._array("centroids")

    @cached_property
    def cluster_domains(self) -> np.ndarray:
        """Domain of each cluster, of shape `(num_clusters,)`."""
        return self._array("cluster_domains")

    @cached_property
    def text_hashes(self) -> np.ndarray:
        """Hashes of query and document of each pair, of shape `(num_pairs, 2)`."""
        return self._array("text_hashes")

    @cached_property
    def answers(self) -> np.ndarray:
        """Keys of all pairs ([`pair_keys`]) in ascending order, of shape `(num_pairs,)`."""
        return self._array("answers")

    @cached_property
    def filter_queries(self) -> np.ndarray:
        """Vectors of the queries for the filter, of shape `(num_pairs, dim)`."""
        return self._array(f"{self._filter_name}_queries")

    @cached_property
    def filter_documents(self) -> np.ndarray:
        """Vectors of the documents for the filter, of shape `(num_pairs, dim)`."""
        return self._array(f"{self._filter_name}_documents")

    @cached_property
    def negative_offsets(self) -> np.ndarray | None:
        """Offset of each pair's first hard negative, of shape `(num_pairs + 1,)`, if the data has any."""
        return self._array("negative_offsets") if self.manifest["has_negatives"] else None

    @cached_property
    def negative_hashes(self) -> np.ndarray | None:
        """Hashes of the hard negatives, of shape `(num_negatives,)`, if the data has any."""
        return self._array("negative_hashes") if self.manifest["has_negatives"] else None

    @cached_property
    def filter_negatives(self) -> np.ndarray | None:
        """Vectors of the hard negatives, of shape `(num_negatives, dim)`, if the data has any."""
        return self._array(f"{self._filter_name}_negatives") if self.manifest["has_negatives"] else None

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the clusters, the same in every process."""
        return hash_arrays((self.cluster_ids, self.cluster_domains, self.centroids))

    def check_dataset(self, dataset: Dataset) -> None:
        """Refuses a data set that the plan was not made for. Compares its length and a thousand of its rows."""
        if len(dataset) != len(self):
            raise ValueError(
                f"The batch plan `{self.folder}` was made for {len(self):,} pairs, but the data set has "
                f"{len(dataset):,}. Give the data set it was made for, or prepare it again."
            )
        rows = np.unique(np.linspace(0, len(self) - 1, _NUM_CHECKED_ROWS).astype(np.int64))
        sample = dataset.select(rows)
        is_other = (self.text_hashes[rows] != hash_pairs(sample)).any(axis=1)
        if self.manifest["has_negatives"]:
            is_other |= self._has_other_negatives(sample, rows)
        if is_other.any():
            raise ValueError(
                f"The batch plan `{self.folder}` was made for other data: row {rows[is_other][0]} has another text. "
                "Give the data set it was made for, in its order, or prepare it again."
            )

    def _has_other_negatives(self, sample: Dataset, rows: np.ndarray) -> np.ndarray:
        if "negatives" not in sample.column_names or self.negative_hashes is None or self.negative_offsets is None:
            return np.ones(len(rows), dtype=bool)
        offsets, hashes = hash_negatives(sample)
        ours = [self.negative_hashes[self.negative_offsets[row] : self.negative_offsets[row + 1]] for row in rows]
        theirs = np.split(hashes, offsets[1:-1])
        return np.array([not np.array_equal(own, other) for own, other in zip(ours, theirs, strict=True)])

    @property
    def _filter_name(self) -> str:
        return "filter" if self.manifest["filter_surrogate"] is not None else "clustering"

    def _array(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")


def hash_text(text: str) -> int:
    """Hashes a text to 64 bits, the same in every process."""
    return xxhash.xxh3_64_intdigest(text.encode())


def hash_pairs(dataset: Dataset) -> np.ndarray:
    """
    Hashes queries and documents.

    Returns:
        `np.ndarray` of shape `(num_pairs, 2)`: Hash of the query and of the document of each pair.
    """
    columns = dataset.select_columns(["query", "document"])[:]
    hashes = [[hash_text(text) for text in columns[name]] for name in ("query", "document")]
    return np.array(hashes, dtype=np.uint64).T


def pair_keys(query_hashes: np.ndarray, document_hashes: np.ndarray) -> np.ndarray:
    """Hashes pairs of a query and a document, given by the hashes of their texts."""
    return query_hashes * np.uint64(0x9E3779B97F4A7C15) + document_hashes  # modulo 2 ** 64


def hash_negatives(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """
    Hashes all hard negatives.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Offset of each pair's first hard negative, of shape `(num_pairs + 1,)`,
        and the hashes, of shape `(num_negatives,)`.
    """
    negatives = dataset.select_columns(["negatives"])
    counts, hashes = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.uint64)]
    for start in range(0, len(negatives), _BLOCK_SIZE):
        rows = negatives[start : start + _BLOCK_SIZE]["negatives"]
        counts.append(np.array([len(row) for row in rows], dtype=np.int64))
        hashes.append(np.array([hash_text(text) for row in rows for text in row], dtype=np.uint64))
    return np.cumsum(np.concatenate(counts)), np.concatenate(hashes)


def hash_arrays(arrays: Iterable[np.ndarray], names: Iterable[str] = ()) -> str:
    """Hashes names, and arrays such as the hashes of texts."""
    digest = hashlib.blake2b("\n".join(names).encode(), digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


__all__ = ["BATCH_PLAN", "BatchPlan", "hash_arrays", "hash_negatives", "hash_pairs", "pair_keys"]
