"""
A folder of files that are replaced together.

Every save writes its files under new names and then replaces the manifest, which lists them with their sizes and
hashes. A save that fails or is killed leaves the manifest and the files that it lists unchanged.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import xxhash


MANIFEST = "manifest.json"

_BYTES_AT_ONCE = 1 << 22
# The manifest, the files of a save, and the temporary folders of killed writers.
_OUR_NAMES = re.compile(rf"{re.escape(MANIFEST)}(\.new)?|[a-z]+-[0-9a-f]{{8}}\.[a-z]+|tmp[a-z0-9_]{{8}}")


def write_folder(folder: Path, facts: Mapping[str, Any], writers: Mapping[str, Callable[[Path], None]]) -> None:
    """
    Writes files and facts to a folder and replaces the files of an earlier call.

    Args:
        folder (`Path`):
            A new or empty folder, or one that this function wrote.
        facts (`Mapping`):
            JSON-serialisable values.
        writers (`Mapping[str, Callable]`):
            A function that writes a path, for each file name such as `vectors.faiss`.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mark = uuid4().hex[:8]
    paths = {name: folder / f"{Path(name).stem}-{mark}{Path(name).suffix}" for name in writers}
    temporary = folder / f"{MANIFEST}.new"
    try:
        for name, write in writers.items():
            _write(write, paths[name])
        files = {name: _describe(path) for name, path in paths.items()}
        _write(lambda path: path.write_text(json.dumps({**facts, "files": files}, indent=1)), temporary)
        os.replace(temporary, folder / MANIFEST)
    except BaseException:
        for path in (*paths.values(), temporary):
            path.unlink(missing_ok=True)
        raise
    for path in folder.iterdir():
        if path.name != MANIFEST and path not in paths.values():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def check_folder(folder: Path) -> None:
    """Refuses a folder with files that [`write_folder`] did not write."""
    foreign = (
        [path.name for path in folder.iterdir() if not _OUR_NAMES.fullmatch(path.name)] if folder.is_dir() else []
    )
    if foreign:
        raise ValueError(
            f"`{folder}` holds files that do not belong to an index, such as {sorted(foreign)[:3]}, so nothing was "
            "written. Give a new folder, or the folder of an older index."
        )


def read_manifest(folder: Path, *, format_version: int) -> dict[str, Any]:
    """Reads the facts of a folder and, as `files`, the descriptions of its files, which stay unread."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, _ = manifest["format_version"], manifest["files"]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"`{folder}` holds no index. Make one with `cde-hf index MODEL CORPUS {folder}`."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"The manifest of `{folder}` is corrupt or incomplete ({error}). Build the index again."
        ) from error
    if version != format_version:
        raise ValueError(
            f"`{folder}` is an index of version {version}, but this package reads version {format_version}. Build the "
            "index again."
        )
    return manifest


def read_folder(folder: Path, *, format_version: int) -> tuple[dict[str, Any], dict[str, Path]]:
    """
    Reads the facts of a folder and finds its files, refusing those that are corrupt or incomplete.

    Returns:
        `tuple`: The facts, and the path of each file by its name.
    """
    facts = read_manifest(folder, format_version=format_version)
    paths = {}
    for name, description in facts.pop("files").items():
        paths[name] = folder / description["file"]
        found = _describe(paths[name]) if paths[name].is_file() else None
        if found != description:
            raise ValueError(
                f"The index `{folder}` is corrupt or incomplete: `{description['file']}` should be "
                f"{_in_words(description)}, got {_in_words(found)}. Restore the file or build the index again."
            )
    return facts, paths


def _write(write: Callable[[Path], Any], path: Path) -> None:
    try:
        write(path)
    except (OSError, RuntimeError) as error:  # FAISS and safetensors raise their own errors on a full disk
        raise OSError(
            f"`{path}` could not be written ({error}). The older index is unchanged: free some space and save again."
        ) from error


def _describe(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_BYTES_AT_ONCE):
            digest.update(block)
    return {"file": path.name, "num_bytes": path.stat().st_size, "hash": digest.hexdigest()}


def _in_words(description: dict[str, Any] | None) -> str:
    return "no file" if description is None else f"{description['num_bytes']:,} bytes with hash {description['hash']}"


__all__ = ["MANIFEST", "check_folder", "read_folder", "read_manifest", "write_folder"]
