"""
Checkpoints of a training run. Incomplete checkpoints are never used.

When all files of a checkpoint are written, its manifest is replaced: it lists all files, and the identity of the run.
A folder without it, or with other files, was cut off by a crash, and no run resumes from it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from ..files import CHECKPOINT
from ..processes import process_state


logger = logging.get_logger(__name__)

_FOLDER_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


@contextmanager
def locked_output(output_dir: str | Path) -> Iterator[None]:
    """Refuses a folder with other files or with another training, in the main process."""
    with CHECKPOINT.locked(output_dir) if process_state().is_main_process else nullcontext():
        yield


def write_manifest(folder: str | Path, run: dict[str, Any]) -> None:
    """
    Marks a checkpoint as complete.

    Args:
        folder (`str` or `Path`):
            The checkpoint, with all its files written.
        run (`dict`):
            Identity of the run. A run that resumes from the checkpoint must have the same.
    """
    CHECKPOINT.write_manifest(Path(folder), {"run": run})


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads the `run` of a checkpoint. Raises `ValueError` if the checkpoint is corrupt or incomplete."""
    try:
        return CHECKPOINT.read(folder, verify=True)["run"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"`{folder}` is not a complete checkpoint ({error}). Resume from another checkpoint, or with `auto` from "
            "the last complete one."
        ) from error


def find_last_checkpoint(output_dir: str | Path) -> Path | None:
    """Returns the last complete checkpoint in a folder, or `None`. Logs incomplete ones."""
    folders = {
        int(match[1]): folder
        for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if folder.is_dir() and (match := _FOLDER_NAME.fullmatch(folder.name))
    }
    for step in sorted(folders, reverse=True):
        try:
            read_manifest(folders[step])
        except ValueError as error:
            logger.warning(f"Skipping an incomplete checkpoint. {error}")
        else:
            return folders[step]
    return None


__all__ = ["find_last_checkpoint", "locked_output", "read_manifest", "write_manifest"]
