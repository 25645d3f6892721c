"""
Checkpoints with a manifest. Incomplete checkpoints are never used.

The last file written to a checkpoint is a manifest: the size of every other file, and the identity of the run. A
folder without a manifest, or with files of other sizes, was cut off by a crash, and no run resumes from it.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging


logger = logging.get_logger(__name__)

MANIFEST = "checkpoint_manifest.json"

_FOLDER_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def write_manifest(folder: str | Path, run: dict[str, Any]) -> None:
    """
    Marks a checkpoint as complete.

    Args:
        folder (`str` or `Path`):
            The checkpoint, with all its files written.
        run (`dict`):
            Identity of the run. A run that resumes from the checkpoint must have the same.
    """
    folder = Path(folder)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST]
    for path in paths:
        _flush(path)
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    new_manifest = folder / f"{MANIFEST}.new"
    new_manifest.write_text(json.dumps({"files": sizes, "run": run}, indent=2), encoding="utf-8")
    _flush(new_manifest)
    os.replace(new_manifest, folder / MANIFEST)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads the `run` of a checkpoint. Raises `ValueError` if the checkpoint is incomplete."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*")}
        damaged = [name for name, size in manifest["files"].items() if sizes.get(name) != size]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"`{folder}` is not a complete checkpoint: its `{MANIFEST}` is missing or corrupt ({error}). Resume from "
            "another checkpoint, or with `auto` from the last complete one."
        ) from error
    if damaged:
        raise ValueError(
            f"`{folder}` is not a complete checkpoint: {', '.join(damaged)} missing or of the wrong size. Resume from "
            "another checkpoint, or with `auto` from the last complete one."
        )
    return manifest["run"]


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


def _flush(path: Path) -> None:
    """Waits until the file is on disk, so that a power cut cannot leave a manifest without its files."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


__all__ = ["MANIFEST", "find_last_checkpoint", "read_manifest", "write_manifest"]
