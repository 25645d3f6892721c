"""
Surrogates: cheap models that replace the model in training when pairs are clustered and negatives filtered.

Their vectors are stored on disk, one memory-mapped array per side, written in shards. A shard is a range of texts. A
marker file shows that it is complete, so an interrupted run resumes after the last complete shard. Several processes,
started by accelerate, take the shards in turn.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.lib.format import open_memmap
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from torch import nn
from tqdm.auto import tqdm

from ..data import check_counts, check_seed, check_texts
from ..files import explained_full_disk
from ..processes import process_state


Side = Literal["query", "document"]

SHARD_SIZE = 8192

_MAX_FEATURES = 50_000


class Surrogate(Protocol):
    """Interface of a surrogate."""

    description: dict[str, str | int | None]
    """Name and settings for the manifest. Another description means other vectors."""

    dim: int
    """Dimension of the vectors."""

    num_fitting_texts: int
    """Number of texts to fit on before encoding, 0 for none."""

    def fit(self, texts: Iterable[str]) -> None:
        """Fits the surrogate on a sample of the texts."""

    def encode(self, texts: list[str], side: Side) -> np.ndarray:
        """Encodes texts to unit-norm vectors of shape `(num_texts, dim)`."""


class SentenceTransformerSurrogate:
    """
    A sentence-transformers model as surrogate.

    Its own prompts for queries and documents are used, if it has any.

    Args:
        name_or_path (`str` or `Path`):
            Folder or Hub name of the model.
        max_length (`int`, *optional*):
            Maximum number of tokens of a text. Defaults to the model's own.
        mini_batch_size (`int`, *optional*, defaults to `64`):
            Texts to encode at once.
    """

    num_fitting_texts = 0

    def __init__(
        self,
        name_or_path: str | Path,
        *,
        max_length: int | None = None,
        mini_batch_size: int = 64,
    ):
        check_counts(max_length=max_length, mini_batch_size=mini_batch_size)
        from sentence_transformers import SentenceTransformer  # here, because importing it takes seconds

        # Each process has its own device.
        self.model = SentenceTransformer(str(name_or_path), device=str(process_state().device))
        if max_length is not None:
            self.model.max_seq_length = max_length
        self.mini_batch_size = mini_batch_size
        self.dim: int = self.model.get_embedding_dimension()  # type: ignore[assignment]  # sentence encoders have one
        self.description: dict[str, str | int | None] = {
            "kind": "sentence-transformers",
            "name": str(name_or_path),
            "dim": self.dim,
            "max_length": self.model.max_seq_length,
            "prompts": str(self.model.prompts),
            "weights": _hash_weights(self.model),
        }

    def fit(self, texts: Iterable[str]) -> None:
        """Does nothing: the model is already trained."""

    def encode(self, texts: list[str], side: Side) -> np.ndarray:
        """Encodes texts to unit-norm vectors."""
        encode = self.model.encode_query if side == "query" else self.model.encode_document
        return encode(texts, batch_size=self.mini_batch_size, normalize_embeddings=True, show_progress_bar=False)


def _hash_weights(model: nn.Module) -> str:
    """Hashes the weights, because another model under the same name has other vectors."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        sample = parameter.detach().flatten()[:: max(1, parameter.numel() // 1024)]
        digest.update(sample.float().cpu().numpy().tobytes())
    return digest.hexdigest()


class TfidfSurrogate:
    """
    TF-IDF followed by a truncated singular value decomposition: fast, and without any download.

    Args:
        dim (`int`, *optional*, defaults to `128`):
            Dimension of the vectors.
        num_fitting_texts (`int`, *optional*, defaults to `100000`):
            Number of texts to fit on.
        seed (`int`, *optional*, defaults to `0`):
            Random seed of the decomposition.
    """

    def __init__(self, *, dim: int = 128, num_fitting_texts: int = 100_000, seed: int = 0):
        check_counts(dim=dim, num_fitting_texts=num_fitting_texts)
        check_seed(seed)
        self.dim = dim
        self.num_fitting_texts = num_fitting_texts
        self.description: dict[str, str | int | None] = {
            "kind": "tfidf",
            "dim": dim,
            "num_fitting_texts": num_fitting_texts,
            "seed": seed,
        }
        self._vectorizer = TfidfVectorizer(sublinear_tf=True, max_features=_MAX_FEATURES, dtype=np.float32)
        self._decomposition = TruncatedSVD(dim, random_state=seed)

    def fit(self, texts: Iterable[str]) -> None:
        """Fits the vocabulary and the decomposition."""
        texts = list(texts)
        check_texts(texts)
        weights = self._vectorizer.fit_transform(texts)
        self._decomposition.set_params(n_components=min(self.dim, *weights.shape)).fit(weights)

    def encode(self, texts: list[str], side: Side) -> np.ndarray:
        """Encodes texts to unit-norm vectors. A text without any known word has a zero vector."""
        vectors = normalize(self._decomposition.transform(self._vectorizer.transform(texts)))
        # A few texts, or few words, have fewer directions than `dim`.
        return np.pad(vectors, ((0, 0), (0, self.dim - vectors.shape[1]))).astype(np.float32)


def write_vectors(
    surrogate: Surrogate,
    read_texts: Callable[[int, int], list[str]],
    path: Path,
    *,
    offsets: Sequence[int],
    side: Side,
    dtype: str = "float16",
) -> None:
    """
    Encodes texts into a memory-mapped array. Resumes after an interruption.

    Args:
        surrogate (`Surrogate`):
            The fitted surrogate.
        read_texts (`Callable`):
            Returns the texts of the rows `start` to `stop` of the data set.
        path (`Path`):
            The `.npy` file to write, of shape `(offsets[-1], dim)`.
        offsets (`Sequence[int]`):
            Position in the array of the first text of each row of the data set, then the number of all texts.
        side (`str`):
            `"query"` or `"document"`.
        dtype (`str`, *optional*, defaults to `"float16"`):
            `"float16"` or `"float32"`.
    """
    state = process_state()
    num_rows = len(offsets) - 1
    shape = (int(offsets[-1]), surrogate.dim)
    with state.main_process_first():
        vectors = open_rows(path, shape, dtype)
    starts = range(0, num_rows, SHARD_SIZE)[state.process_index :: state.num_processes]
    left = [start for start in starts if not _marker(path, start).exists()]
    for start in tqdm(left, desc=f"Encode {path.stem}", unit="shard", disable=not state.is_main_process):
        stop = min(start + SHARD_SIZE, num_rows)
        texts = read_texts(start, stop)
        if texts:
            rows = _checked(surrogate.encode(texts, side), len(texts), surrogate).astype(dtype)
            write_rows(path, vectors, int(offsets[start]), rows)
        _marker(path, start).touch()
    state.wait_for_everyone()


def open_rows(path: Path, shape: tuple[int, int], dtype: str) -> np.memmap:
    """Opens an array that is written in shards, or makes one without a complete shard."""
    try:
        rows = np.load(path, mmap_mode="r")
        if rows.shape == shape and rows.dtype == dtype:
            return rows
    except (FileNotFoundError, ValueError, EOFError):
        pass  # missing, or interrupted while it was created
    for marker in path.parent.glob(f"{path.stem}.*.done"):
        marker.unlink()
    with explained_full_disk(path):
        return open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def write_rows(path: Path, array: np.memmap, start: int, rows: np.ndarray) -> None:
    """Writes rows to the disk. Not through the memory map: a full disk would end the process with a signal."""
    with explained_full_disk(path), path.open("r+b") as file:
        file.seek(array.offset + start * array.strides[0])
        file.write(rows.tobytes())
        file.flush()
        os.fsync(file.fileno())


def _marker(path: Path, start: int) -> Path:
    return path.with_name(f"{path.stem}.{start}.done")


def _checked(vectors: np.ndarray, num_texts: int, surrogate: Surrogate) -> np.ndarray:
    if vectors.shape != (num_texts, surrogate.dim) or not np.isfinite(vectors).all():
        raise ValueError(
            f"The surrogate {surrogate.description} returned vectors of shape {vectors.shape}, or some that are "
            f"not finite; expected the shape {(num_texts, surrogate.dim)}. Use another surrogate."
        )
    return vectors


__all__ = [
    "SentenceTransformerSurrogate",
    "Side",
    "Surrogate",
    "TfidfSurrogate",
    "open_rows",
    "write_rows",
    "write_vectors",
]
