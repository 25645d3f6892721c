"""
Checkpoints that are whole or not there.

The last file of a checkpoint is a manifest with the size of every other file and with what the run was about. A folder
without it, or with files of other sizes, was torn by a crash and is never resumed from.
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
    Declares a checkpoint whole.

    Args:
        folder (`str` or `Path`):
            The checkpoint, with all its files.
        run (`dict`):
            What a run that resumes from it must have in common with this one.
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
    """The `run` of a checkpoint, which is refused if it is torn."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        torn = [name for name, size in manifest["files"].items() if _size(folder / name) != size]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"`{folder}` is no whole checkpoint: its `{MANIFEST}` is missing or torn ({error}). Resume from another "
            "one, or with `auto` from the last whole one."
        ) from error
    if torn:
        raise ValueError(
            f"`{folder}` is no whole checkpoint: {', '.join(torn)} missing or of another size than was written. "
            "Resume from another one, or with `auto` from the last whole one."
        )
    return manifest["run"]


def find_last_checkpoint(output_dir: str | Path) -> Path | None:
    """The whole checkpoint of the highest step in a folder, if there is any. Torn ones are named in the log."""
    folders = {}
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        match = _FOLDER_NAME.fullmatch(folder.name)
        if match is not None and folder.is_dir():
            folders[int(match[1])] = folder
    for step in sorted(folders, reverse=True):
        try:
            read_manifest(folders[step])
        except ValueError as error:
            logger.warning(f"Passing over a torn checkpoint. {error}")
        else:
            return folders[step]
    return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _flush(path: Path) -> None:
    """Waits until the file is on the disk, so that a power cut cannot leave the manifest without it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


__all__ = ["MANIFEST", "find_last_checkpoint", "read_manifest", "write_manifest"]
