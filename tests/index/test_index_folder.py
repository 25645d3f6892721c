"""The folder of an index: corrupt, foreign, on a full disk, or killed while it is written."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest

from cde_hf import ContextualIndex
from cde_hf.index import folder as index_folder


CORPUS = {"cat": "The cat sleeps.", "dog": "The dog barks."}


@pytest.fixture
def folder(minilm, tmp_path):
    ContextualIndex.build(minilm, CORPUS).save(tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize("name", ["vectors", "documents"])
@pytest.mark.parametrize("fault", ["cut", "changed", "gone"])
def test_a_corrupt_file_is_named(name, fault, folder, minilm):
    path = next(folder.glob(f"{name}-*"))
    content = bytearray(path.read_bytes())
    if fault == "cut":
        path.write_bytes(content[:-5])
    elif fault == "changed":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    message = rf"index `.*` is corrupt or incomplete: `{name}-.*Restore the file or build the index again"
    with pytest.raises(ValueError, match=message):
        ContextualIndex.load(folder, minilm)


def test_a_corrupt_manifest_an_old_one_and_none_are_named(folder, minilm, tmp_path):
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[:30])
    with pytest.raises(ValueError, match="manifest of .* is corrupt or incomplete"):
        ContextualIndex.load(folder, minilm)
    (folder / "manifest.json").write_text(json.dumps({**json.loads(text), "format_version": 1}))
    with pytest.raises(ValueError, match="index of version 1, but this package reads version 3"):
        ContextualIndex.load(folder, minilm)
    with pytest.raises(FileNotFoundError, match=r"holds no index. Make one with `cde-hf index"):
        ContextualIndex.load(tmp_path / "absent", minilm)


def test_foreign_files_are_not_touched(minilm, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"files that do not belong to an index, such as \['thesis.txt'\]"):
        ContextualIndex.build(minilm, CORPUS).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_saving_again_leaves_only_what_is_needed(folder, minilm):
    before = {path.name for path in folder.iterdir()}
    index = ContextualIndex.load(folder, minilm)
    index.add({"owl": "The owl hunts."})
    index.save(folder)
    after = {path.name for path in folder.iterdir()}
    assert len(after) == len(before) == 3 and before & after == {"manifest.json"}
    assert len(ContextualIndex.load(folder, minilm)) == 3


def test_a_full_disk_leaves_the_old_index(folder, minilm, full_disk):
    before = {path.name for path in folder.iterdir()}
    index = ContextualIndex.load(folder, minilm)
    index.add({"owl": "The owl hunts."})
    message = r"could not be written .* older index is unchanged: free some space and save again"
    with full_disk(1000), pytest.raises(OSError, match=message):
        index.save(folder)
    assert {path.name for path in folder.iterdir()} == before
    assert len(ContextualIndex.load(folder, minilm)) == 2
    index.save(folder)
    assert len(ContextualIndex.load(folder, minilm)) == 3


# Killed between two of the files of a save. The file is read by its path: the whole package takes seconds to import.
SCRIPT = """
    import os, runpy, signal, sys
    from pathlib import Path

    write_folder = runpy.run_path(sys.argv[2])["write_folder"]

    def killed(path):
        path.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    writers = {"vectors.faiss": lambda path: path.write_text("whole"), "documents.parquet": killed}
    write_folder(Path(sys.argv[1]), {"format_version": 1, "num_documents": 99}, writers)
"""


def test_a_killed_save_leaves_the_old_index_and_the_next_one_cleans_up(folder, minilm):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), index_folder.__file__]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (folder / "tmp0a1b2c3d").mkdir()  # of a writer that makes a temporary folder of its own
    assert len(list(folder.iterdir())) == 6
    index = ContextualIndex.load(folder, minilm)
    assert len(index) == 2
    index.save(folder)
    assert len(list(folder.iterdir())) == 3
