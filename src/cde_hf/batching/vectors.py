"""
Surrogate vectors on disk: one memory-mapped array per side, filled in shards.

A shard is a range of texts. When it is in the array, a marker file says so; what was finished before an interruption
is not done again. Several processes, started by accelerate, take the shards in turn.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from tqdm.auto import tqdm

from ..launching import process_state
from .surrogates import Side, Surrogate


SHARD_SIZE = int(os.environ.get("CDE_HF_SHARD_SIZE", "8192"))


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
    Encodes texts into a memory-mapped array, going on where an earlier call was interrupted.

    Args:
        surrogate (`Surrogate`):
            The model, fitted.
        read_texts (`Callable`):
            Gives the texts of the rows `start` to `stop` of the data set.
        path (`Path`):
            The `.npy` file to write, of shape `(offsets[-1], dim)`.
        offsets (`Sequence[int]`):
            Place in the array of the first text of each row of the data set, and at the end the number of all texts.
        side (`str`):
            `"query"` or `"document"`.
        dtype (`str`, *optional*, defaults to `"float16"`):
            `"float16"` or `"float32"`.
    """
    state = process_state()
    num_rows = len(offsets) - 1
    shape = (int(offsets[-1]), surrogate.dim)
    with state.main_process_first():
        vectors = _open(path, shape, dtype)
    starts = range(state.process_index * SHARD_SIZE, num_rows, state.num_processes * SHARD_SIZE)
    left = [start for start in starts if not _marker(path, start).exists()]
    for start in tqdm(left, desc=f"Encode {path.stem}", unit="shard", disable=not state.is_main_process):
        stop = min(start + SHARD_SIZE, num_rows)
        texts = read_texts(start, stop)
        if texts:
            vectors[offsets[start] : offsets[stop]] = _checked(surrogate.encode(texts, side), len(texts), surrogate)
            vectors.flush()
        _marker(path, start).touch()
    state.wait_for_everyone()


def _open(path: Path, shape: tuple[int, int], dtype: str) -> np.memmap:
    if path.exists():
        try:
            vectors = np.load(path, mmap_mode="r+")
            if vectors.shape == shape and vectors.dtype == dtype:
                return vectors
        except ValueError:
            pass  # torn while it was being created: none of its shards can be done
        for marker in path.parent.glob(f"{path.stem}.*.done"):
            marker.unlink()
    return open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _marker(path: Path, start: int) -> Path:
    return path.with_name(f"{path.stem}.{start}.done")


def _checked(vectors: np.ndarray, num_texts: int, surrogate: Surrogate) -> np.ndarray:
    if vectors.shape != (num_texts, surrogate.dim) or not np.isfinite(vectors).all():
        raise ValueError(
            f"The surrogate {surrogate.description} gave vectors of shape {vectors.shape}, or some that are not "
            f"finite, for {num_texts} texts of width {surrogate.dim}. Use another surrogate."
        )
    return vectors


__all__ = ["SHARD_SIZE", "write_vectors"]
