"""Files and folders that are complete or not there."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cde_hf.files import MANIFEST, FolderKind, atomic_file, write_text


KIND = FolderKind("box", 1, "Pack the box again.", read_first=("config.json",))


def pack(folder, content, *names, **facts):
    with KIND.replacing(folder, facts) as new_folder:
        for name in names or ("config.json", "weights", "part/context"):
            write_text(new_folder / name, content)


def contents(folder):
    """The texts of a folder's files by name, without the manifest."""
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in names.items() if name != MANIFEST}


def test_files_and_facts_are_read_again(tmp_path):
    pack(tmp_path / "box", "old", colour="red")
    manifest = KIND.read(tmp_path / "box", verify=True)
    assert manifest["colour"] == "red"
    assert sorted(manifest["files"]) == ["config.json", "part/context", "weights"]


def test_only_what_an_earlier_manifest_named_is_removed(tmp_path):
    pack(tmp_path, "old", "config.json", "weights", "part/context")
    write_text(tmp_path / "weights-of-mine", "mine")
    write_text(tmp_path / "part" / "mine", "mine")
    pack(tmp_path, "new", "config.json", "other")
    assert contents(tmp_path) == {
        "config.json": "new",
        "other": "new",
        "weights-of-mine": "mine",
        "part/mine": "mine",
    }


def test_a_folder_of_others_is_refused_and_unchanged(tmp_path):
    write_text(tmp_path / "config.json", "mine")
    with pytest.raises(ValueError, match=r"is no folder of this package for the box, but has files such as \['config"):
        pack(tmp_path, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    with pytest.raises(NotADirectoryError):
        pack(tmp_path / "config.json", "new")


def test_a_folder_of_another_kind_is_refused(tmp_path):
    with FolderKind("crate", 1, "").replacing(tmp_path) as new_folder:
        write_text(new_folder / "x", "x")
    with pytest.raises(ValueError, match="Give a new folder, or the folder of an older box"):
        pack(tmp_path, "new")
    with pytest.raises(ValueError, match="holds: crate, version 1. This package reads: box, version 1. Pack the box"):
        KIND.read(tmp_path)


def test_a_file_of_the_user_is_not_replaced(tmp_path):
    pack(tmp_path, "old", "config.json")
    write_text(tmp_path / "README.md", "mine")
    with pytest.raises(FileExistsError, match="has other files with the names README.md, which the box needs"):
        pack(tmp_path, "new", "config.json", "README.md")
    assert contents(tmp_path) == {"config.json": "old", "README.md": "mine"}


def test_an_error_changes_nothing_and_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), KIND.replacing(tmp_path / "new"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    pack(tmp_path / "box", "old", "weights")
    with pytest.raises(RuntimeError), KIND.replacing(tmp_path / "box") as new_folder:
        write_text(new_folder / "weights", "new")
        raise RuntimeError
    assert contents(tmp_path / "box") == {"weights": "old"}


@pytest.mark.parametrize("verify", [False, True])
def test_a_damaged_file_is_named(tmp_path, verify):
    kind = replace(KIND, hashed_up_to=10)
    pack(tmp_path, "long enough", "big")
    pack_path = tmp_path / "big"
    pack_path.write_text("lang enough")
    if verify:
        with pytest.raises(ValueError, match="corrupt or incomplete: `.*big` has other contents.*Pack the box again"):
            kind.read(tmp_path, verify=True)
    else:
        kind.read(tmp_path)
    pack_path.write_text("longer than before")
    with pytest.raises(ValueError, match="has 18 bytes, not 11"):
        kind.read(tmp_path, verify=verify)
    pack_path.unlink()
    with pytest.raises(ValueError, match="is missing"):
        kind.read(tmp_path, verify=verify)


def test_a_small_file_is_always_hashed(tmp_path):
    pack(tmp_path, "abc", "small")
    (tmp_path / "small").write_text("abd")
    with pytest.raises(ValueError, match="has other contents than were written"):
        KIND.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind": "box", "format_version": 1, "files": {"a": 1}}'])
def test_a_corrupt_manifest_is_named(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match=r"manifest.json` is corrupt, or not from this version .*Pack the box again"):
        KIND.read(tmp_path)


def test_a_changed_fact_is_noticed(tmp_path):
    pack(tmp_path, "abc", "small", scale=0.25)
    path = tmp_path / MANIFEST
    path.write_text(path.read_text().replace("0.25", "0.35"))
    with pytest.raises(ValueError, match="manifest.json` is corrupt: it has another hash than it names. Pack the box"):
        KIND.read(tmp_path)


def test_no_manifest_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no box. Pack the box again"):
        KIND.read(tmp_path)


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with KIND.replacing(tmp_path / "box") as new_folder:
            save_file({"a": torch.zeros(1)}, new_folder / "weights.safetensors")
        with atomic_file(tmp_path / "alone.safetensors") as path:
            save_file({"a": torch.zeros(1)}, path)
    finally:
        os.umask(before)
    paths = [tmp_path / "alone.safetensors", *(tmp_path / "box").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o640}


def test_a_link_to_a_file_stays_a_link(tmp_path):
    write_text(tmp_path / "there" / "file", "old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "new"


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    pack(tmp_path / "link", "old")
    pack(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert set(contents(tmp_path / "there").values()) == {"new"}


def test_a_mount_point_is_replaced_like_any_folder(mount):
    folder = mount("mounted", 1 << 20)
    pack(folder, "old", "config.json", "weights")
    pack(folder, "new", "config.json")
    assert contents(folder) == {"config.json": "new"}


def test_a_mount_point_inside_of_the_folder_stays(tmp_path, mount):
    pack(tmp_path, "old", "config.json")
    write_text(mount("data", 1 << 20) / "mine", "mine")
    pack(tmp_path, "new", "config.json")
    assert contents(tmp_path) == {"config.json": "new", "data/mine": "mine"}


def test_a_full_mount_keeps_the_older_files(mount):
    folder = mount("mounted", 1 << 16)
    pack(folder, "old", "weights")
    with pytest.raises(OSError, match="weights` could not be written: the disk is full .* free some space"):
        pack(folder, "new" * (1 << 16), "weights")
    assert contents(folder) == {"weights": "old"}
    assert KIND.read(folder, verify=True)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(mount):
    folder = mount("mounted", 1 << 16)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    with pytest.raises(OSError, match="Read-only file system"), KIND.locked(folder):
        pytest.fail("the work began")


def test_a_full_disk_is_named_and_changes_nothing(tmp_path, full_disk):
    pack(tmp_path / "box", "old", "weights")
    with full_disk(1000), pytest.raises(OSError, match="could not be written: the disk is full .* free some space"):
        pack(tmp_path / "box", "new" * 1000, "weights")
    with (
        full_disk(1000),
        pytest.raises(OSError, match="array.npy` could not be written: the disk is full"),
        atomic_file(tmp_path / "array.npy") as path,
        path.open("wb") as file,
    ):
        np.save(file, np.zeros(1000))
    assert contents(tmp_path / "box") == {"weights": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["box"]


def run(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


HOLD = """
    import os, sys, time
    from cde_hf.files import FolderKind
    with FolderKind("box", 1, "").locked(sys.argv[1]):
        if os.fork() == 0:  # like the worker of a data loader, which lives on for a moment
            print("held", flush=True)
            time.sleep(30)
        time.sleep(60)
"""


def test_a_second_writer_is_refused_until_the_first_one_dies(tmp_path):
    process = run(HOLD, tmp_path)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError, match="Another process is writing to .* Wait until it ends"):
        pack(tmp_path, "new")
    process.send_signal(signal.SIGKILL)
    process.wait()
    pack(tmp_path, "new", "weights")
    assert contents(tmp_path) == {"weights": "new"}


def test_a_killed_replacement_is_old_or_new_or_refused(tmp_path, killed_at):
    outcomes = set()
    for number in range(1000):
        folder = tmp_path / str(number)
        pack(folder, "old", "config.json", "weights", "context")
        was_killed = killed_at(number, pack, folder, "new", "config.json", "weights", "other")
        try:
            names = KIND.read(folder, verify=True)["files"]
            found = {(folder / name).read_text() for name in names}
            assert len(found) == 1  # never a mixture
            outcomes |= found
        except (FileNotFoundError, ValueError):
            outcomes.add("refused")
        if (folder / "config.json").exists():  # what a reader without manifest takes
            text = (folder / "config.json").read_text()
            names = {"old": {"weights", "context"}, "new": {"weights", "other"}}[text]
            assert {name: contents(folder)[name] for name in names} == dict.fromkeys(names, text)
            assert text == "old" or not (folder / "context").exists()
        pack(folder, "newest", "config.json")
        assert contents(folder) == {"config.json": "newest"}
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", MANIFEST]
        if not was_killed:
            break
    assert number > 20
    assert outcomes == {"old", "new", "refused"}


def test_a_first_save_that_was_killed_leaves_nothing_behind(tmp_path, killed_at):
    for number in range(1000):
        folder = tmp_path / str(number)
        was_killed = killed_at(number, pack, folder, "new", "config.json", "weights")
        pack(folder, "newest", "weights")
        assert contents(folder) == {"weights": "newest"}
        if not was_killed:
            break


def test_a_killed_write_of_a_file_leaves_nothing_behind(tmp_path, killed_at):
    path = tmp_path / "scores.json"
    write_text(path, "old")
    for number in range(1000):
        was_killed = killed_at(number, write_text, path, "new")
        assert path.read_text() in ("old", "new")
        write_text(path, "old")
        assert [each.name for each in tmp_path.iterdir()] == ["scores.json"]
        if not was_killed:
            break
    assert number > 2


def test_the_manifest_of_a_stranger_removes_nothing_elsewhere(tmp_path):
    write_text(tmp_path / "mine", "mine")
    pack(tmp_path / "box", "old", "weights")
    manifest = json.loads((tmp_path / "box" / MANIFEST).read_text())
    manifest["files"]["../mine"] = manifest["files"]["weights"]
    (tmp_path / "box" / MANIFEST).write_text(json.dumps(manifest))
    pack(tmp_path / "box", "new", "weights")
    assert (tmp_path / "mine").read_text() == "mine"
