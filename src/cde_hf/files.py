"""
Files and folders that are complete or not there.

A file is written under another name in the same folder and then renamed. A folder of files that belong together, of
some [`FolderKind`], is replaced in these steps:

1. A folder with other files is refused, and the folder is locked. The lock dies with its process.
2. The new files are written to a folder inside of the folder, so that no rename crosses file systems.
3. The manifest lists their sizes and hashes. A journal lists which older files it replaces.
4. If a new file has the name of an older one, the older manifest and the files that readers open first are removed.
   From here on, no reader takes a mixture for a complete folder.
5. The new files are renamed, the files that readers open first at the end, and then the manifest.
6. Files that only the older manifest lists are removed. Other files stay.

If the process is killed, the next lock of the folder finishes steps 4 to 6, or removes what steps 2 and 3 left.
"""

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from transformers.utils import logging


try:
    import fcntl
except ImportError:  # on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

logger = logging.get_logger(__name__)

MANIFEST = "manifest.json"
REQUIREMENTS = {"sentence-transformers": ">=6.2", "transformers": ">=5.22"}  # of checkpoints, checked on load

_LOCK = ".cde-hf.lock"
_NEW = ".cde-hf.new"
_JOURNAL = ".journal.json"
_FULL_DISK = re.compile(r"No space left|File too large|quota exceeded|requested and \d+ written", re.IGNORECASE)

_locks: dict[str, IO[bytes]] = {}  # of this process, by path


@dataclass(frozen=True)
class FolderKind:
    """
    A kind of folder. Its manifest lists the files that belong together, with their sizes and hashes.

    For `KIND = FolderKind("index", 3, "Build the index again.")`:

    - `with KIND.locked(folder):` holds the folder of a writer, from before its work begins.
    - `with KIND.replacing(folder, facts) as new_folder:` replaces its files by what is written to `new_folder`. It
      locks the folder, unless this process has locked it.
    - `KIND.read(folder)` returns the facts and, as `files`, size and hash of each file. It refuses files of another
      size. `KIND.read(folder, verify=True)` compares all hashes.

    Args:
        name (`str`):
            What a folder holds, such as `"batch plan"`.
        format_version (`int`):
            Version of the contents. Folders of other versions are refused.
        remedy (`str`):
            A sentence that says how to make one, for errors.
        read_first (`tuple[str, ...]`, *optional*):
            Files without which other libraries load nothing. The most important one is last.
        compared (`tuple[str, ...]`, *optional*):
            Endings of the files that [`FolderKind.read`] compares if it does not verify. Defaults to all files.
        hashed_up_to (`int`, *optional*, defaults to 16 MiB):
            Size of the largest file of which it compares the hash if it does not verify.
    """

    name: str
    format_version: int
    remedy: str
    read_first: tuple[str, ...] = ()
    compared: tuple[str, ...] = ("",)
    hashed_up_to: int = 1 << 24

    def refuse_foreign(self, folder: str | os.PathLike) -> None:
        """Refuses a folder that is neither empty nor of this kind."""
        folder = Path(folder)
        if not folder.exists():
            return
        is_locked = (folder / _LOCK).exists()  # read first: a writer removes the manifest and then writes another one
        manifest = _read_json(folder / MANIFEST)
        if manifest.get("kind") == self.name or is_locked and not manifest:
            return
        # A training run begins with a folder that holds a batch plan.
        others = sorted(path.name for path in folder.iterdir() if "kind" not in _read_json(path / MANIFEST))
        if others:
            raise ValueError(
                f"`{folder}` is no folder of this package for the {self.name}, but has files such as {others[:3]}. "
                f"Nothing was written. Give a new folder, or the folder of an older {self.name}."
            )

    @contextmanager
    def locked(self, folder: str | os.PathLike) -> Iterator[Path]:
        """Makes a folder if it is missing, and keeps other processes from writing to it."""
        folder = Path(folder)
        key = str((folder / _LOCK).resolve())
        if key in _locks:
            yield folder
            return
        self.refuse_foreign(folder)
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _LOCK).open("ab") as file:
            if not _lock(file) or not _is_at(file, folder / _LOCK):
                raise BlockingIOError(
                    f"Another process is writing to `{folder}`. Wait until it ends, or give another folder."
                )
            _locks[key] = file
            try:
                self._recover(folder)
                yield folder
            finally:
                del _locks[key]
                is_empty = is_new and [path.name for path in folder.iterdir()] == [_LOCK]
                if is_empty or (folder / MANIFEST).exists():  # otherwise, it says that the files are ours
                    (folder / _LOCK).unlink(missing_ok=True)
                if is_empty:
                    folder.rmdir()

    @contextmanager
    def replacing(self, folder: str | os.PathLike, facts: Mapping[str, Any] | None = None) -> Iterator[Path]:
        """
        Gives a folder to write new files to. They replace the files of the folder if no error occurs. Facts that are
        known only later may be added to `facts` while it writes.
        """
        with self.locked(folder) as target, explained_full_disk(target):
            new_folder = target / _NEW
            new_folder.mkdir()
            try:
                yield new_folder
                self.write_manifest(new_folder, facts)
                self.publish(new_folder, target)
            except BaseException:
                if not (new_folder / _JOURNAL).exists():
                    shutil.rmtree(new_folder)
                raise

    def publish(self, new_folder: Path, folder: Path) -> None:
        """Moves files from a folder inside of a locked folder to their place, together with their manifest."""
        older = _read_json(folder / MANIFEST).get("files", {})
        files = _read_json(new_folder / MANIFEST)["files"]
        moves = sorted(name for name in files if (new_folder / name).exists())
        taken = [name for name in moves if name not in older and (folder / name).exists()]
        if taken:
            raise FileExistsError(
                f"`{folder}` has other files with the names {', '.join(taken[:3])}, which the {self.name} needs. "
                "Nothing was changed. Move them, or give another folder."
            )
        journal = {
            "moves": moves,
            "removes": sorted(older.keys() - files.keys()),
            "replaces": sorted(older.keys() & set(moves)),
        }
        write_text(new_folder / _JOURNAL, json.dumps(journal))
        if new_folder != folder / _NEW:
            os.replace(new_folder, folder / _NEW)
        self._finish(folder)

    def write_manifest(
        self,
        folder: Path,
        facts: Mapping[str, Any] | None = None,
        *,
        names: Collection[str] | None = None,
        kept: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Lists files of a folder in its manifest, when they are on disk: those given, or all."""
        names = _names_of_files(folder) - {MANIFEST, _LOCK} if names is None else names
        for name in names:
            _flush(folder / name)
        files = {**(kept or {}), **{name: describe(folder / name) for name in sorted(names)}}
        manifest = {"kind": self.name, "format_version": self.format_version, **(facts or {}), "files": files}
        manifest["hash"] = _hash_of_manifest(manifest)
        write_text(folder / MANIFEST, json.dumps(manifest, indent=1))
        for name in names:  # safetensors makes files that nobody else may read
            (folder / name).chmod((folder / MANIFEST).stat().st_mode)
        return manifest

    def read(self, folder: str | os.PathLike, *, verify: bool = False) -> dict[str, Any]:
        """
        Reads a manifest, and refuses a folder that is corrupt or incomplete.

        Args:
            folder (`str` or `os.PathLike`):
                The folder.
            verify (`bool`, *optional*, defaults to `False`):
                Whether to compare the hashes of all files. Otherwise, hashes of small files, and sizes.
        """
        manifest = self.read_manifest(folder)
        for name, description in manifest["files"].items():
            if verify or name.endswith(self.compared):
                self.check_file(Path(folder) / name, description, verify=verify)
        return manifest

    def read_manifest(self, folder: str | os.PathLike) -> dict[str, Any]:
        """Reads a manifest, but not its files."""
        path = Path(folder) / MANIFEST
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            kind, version = manifest["kind"], manifest["format_version"]
            is_damaged = manifest["hash"] != _hash_of_manifest(manifest)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"`{folder}` holds no {self.name}. {self.remedy}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"`{path}` is corrupt, or not from this version ({error}). {self.remedy}") from error
        if (kind, version) != (self.name, self.format_version):
            raise ValueError(
                f"`{folder}` holds: {kind}, version {version}. This package reads: {self.name}, version "
                f"{self.format_version}. {self.remedy}"
            )
        if is_damaged:
            raise ValueError(f"`{path}` is corrupt: it has another hash than it names. {self.remedy}")
        return manifest

    def is_in(self, folder: str | os.PathLike) -> bool:
        """Whether a folder has a manifest of this kind."""
        return _read_json(Path(folder) / MANIFEST).get("kind") == self.name

    def check(self, folder: str | os.PathLike) -> None:
        """Refuses a folder that is corrupt or incomplete. A folder that this package did not write may be anything."""
        if self.is_in(folder):
            self.read(folder)
        elif (Path(folder) / _NEW / _JOURNAL).exists():
            raise ValueError(
                f"The files of `{folder}` were being replaced when a process was killed, or still are. Run again what "
                f"wrote the {self.name}."
            )

    def check_file(self, path: Path, description: Mapping[str, Any], *, verify: bool = True) -> None:
        """Refuses a file that is not as the manifest describes it."""
        damage = find_damage(path, description, verify=verify or description["num_bytes"] <= self.hashed_up_to)
        if damage is not None:
            raise ValueError(f"The {self.name} is corrupt or incomplete: `{path}` {damage}. {self.remedy}")

    def _recover(self, folder: Path) -> None:
        """Finishes or removes what a killed process left."""
        if (folder / _NEW / _JOURNAL).exists():
            self._finish(folder)
        elif (folder / _NEW).exists():
            shutil.rmtree(folder / _NEW)

    def _finish(self, folder: Path) -> None:
        """Steps 4 to 6. May be repeated from the start after any interruption."""
        new_folder = folder / _NEW
        journal = _read_json(new_folder / _JOURNAL)
        left = {name for name in (*journal["moves"], MANIFEST) if (new_folder / name).exists()}
        if MANIFEST in left and journal["replaces"]:
            for name in (MANIFEST, *sorted(left.intersection(self.read_first)), *journal["removes"]):
                _remove(folder, name)
        last = {name: number for number, name in enumerate((*self.read_first, MANIFEST), start=1)}
        for name in sorted(left, key=lambda name: last.get(name, 0)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(new_folder / name, folder / name)
        for name in journal["removes"]:
            _remove(folder, name)
        shutil.rmtree(new_folder)


CHECKPOINT = FolderKind(
    "checkpoint",
    1,
    "Save the model again, or remove `manifest.json` if you changed the file on purpose.",
    read_first=("modules.json", "config.json"),
    compared=(".safetensors", ".onnx"),
)


@contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """
    Gives another path to write, which replaces the file if no error occurs. Makes the folder if it is missing.

    What killed processes left of the same file is removed.
    """
    path = Path(path).resolve()  # a symbolic link stays, and so does the file system
    path.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        with abandoned.open("ab") as file:
            if _lock(file):
                abandoned.unlink(missing_ok=True)
    new_path = path.with_name(f".{path.name}.{uuid4().hex[:8]}.new")
    with explained_full_disk(path), new_path.open("xb") as file:
        _lock(file)
        try:
            yield new_path
            new_path.chmod(os.fstat(file.fileno()).st_mode)  # safetensors makes files that nobody else may read
            _flush(new_path)
            os.replace(new_path, path)
        except BaseException:
            new_path.unlink(missing_ok=True)
            raise


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text file. An existing file is replaced when the new one is complete."""
    with atomic_file(path) as new_path:
        new_path.write_text(text, encoding="utf-8")


def describe(path: Path) -> dict[str, Any]:
    """Size and hash of a file, as a manifest lists them."""
    with path.open("rb") as file:
        return {"num_bytes": path.stat().st_size, "hash": hashlib.file_digest(file, "sha256").hexdigest()}


@contextmanager
def explained_full_disk(path: Path) -> Iterator[None]:
    """Says what to do if the disk is full, of which each library has its own error."""
    try:
        yield
    except Exception as error:
        if not _FULL_DISK.search(str(error)) or str(path) in str(error):
            raise
        raise OSError(
            f"`{path}` could not be written: the disk is full ({error}). What was complete is unchanged: free some "
            "space and start again."
        ) from error


def find_damage(path: Path, description: Mapping[str, Any], *, verify: bool = True) -> str | None:
    """What is wrong with a file that a manifest describes, in words. It is only hashed to verify it."""
    wanted = description["num_bytes"]
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != wanted:
        return f"has {path.stat().st_size:,} bytes, not {wanted:,}"
    if verify and describe(path) != description:
        return "has other contents than were written"
    return None


def _hash_of_manifest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps({**manifest, "hash": None}, sort_keys=True).encode()).hexdigest()


def _names_of_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _remove(folder: Path, name: str) -> None:
    """Removes a file of a folder, and the subfolders that become empty."""
    path = folder / name
    if ".." in path.relative_to(folder).parts:
        return
    path.unlink(missing_ok=True)
    for parent in path.parents:
        if parent == folder or not parent.is_dir() or any(parent.iterdir()):
            break
        parent.rmdir()


def _flush(path: Path) -> None:
    """Waits until a file is on disk, so that a power cut cannot leave a manifest without its files."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _lock(file: IO[bytes]) -> bool:
    """Locks an open file until it is closed or the process ends. Returns whether no other process holds the lock."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:  # some network file systems have no locks
            logger.warning(f"`{file.name}` cannot be locked ({error}). Let one process at a time write there.")
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is still the file of that name. The process that held its lock may have removed it."""
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _close_locks() -> None:
    """A process that is forked would keep the locks of its parent."""
    for file in _locks.values():
        file.close()
    _locks.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_close_locks)


__all__ = [
    "CHECKPOINT",
    "MANIFEST",
    "REQUIREMENTS",
    "FolderKind",
    "atomic_file",
    "describe",
    "explained_full_disk",
    "find_damage",
    "write_text",
]
