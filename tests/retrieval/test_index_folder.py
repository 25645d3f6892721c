"""The folder of an index: torn, foreign, on a full disk, or killed while it is written."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from cde_hf import ContextualIndex
from cde_hf.retrieval.index_folder import read_folder, write_folder


CORPUS = {"cat": "The cat sleeps.", "dog": "The dog barks."}


@pytest.fixture
def folder(minilm, tmp_path):
    ContextualIndex.build(minilm, CORPUS).save(tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize("name", ["vectors", "documents"])
@pytest.mark.parametrize("fault", ["cut", "changed", "gone"])
def test_a_torn_file_is_named(name, fault, folder, minilm):
    path = next(folder.glob(f"{name}-*"))
    content = bytearray(path.read_bytes())
    if fault == "cut":
        path.write_bytes(content[:-5])
    elif fault == "changed":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(ValueError, match=rf"index `.*` is torn: `{name}-.*Restore the file or build the index again"):
        ContextualIndex.load(folder, minilm)


def test_a_torn_manifest_an_old_one_and_none_are_named(folder, minilm, tmp_path):
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[:30])
    with pytest.raises(ValueError, match="manifest of the index .* is torn"):
        ContextualIndex.load(folder, minilm)
    (folder / "manifest.json").write_text(json.dumps({**json.loads(text), "format_version": 0}))
    with pytest.raises(ValueError, match="index of version 0, but this package reads version 1"):
        ContextualIndex.load(folder, minilm)
    with pytest.raises(FileNotFoundError, match=r"holds no index. Make one with `cde-hf index"):
        ContextualIndex.load(tmp_path / "absent", minilm)


def test_foreign_files_are_not_touched(minilm, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"files that are not of an index, such as \['thesis.txt'\]"):
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


# A limit on the size of files stands in for a full disk: the same system calls fail in the same places.
SCRIPT = """
    import os, resource, signal, sys
    import numpy as np
    from pathlib import Path
    from cde_hf.retrieval.index_folder import write_folder
    import faiss

    def vectors(path):
        index = faiss.IndexFlatIP(64)
        index.add(np.zeros((1000, 64), dtype=np.float32))
        faiss.write_index(index, str(path))

    def killed(path):
        path.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    folder, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            write_folder(folder, {"format_version": 1, "content": "new"}, {"vectors.faiss": vectors})
        except OSError as error:
            sys.exit(str(error))
    else:
        writers = {"vectors.faiss": vectors, "documents.parquet": killed}
        write_folder(folder, {"format_version": 1, "content": "new"}, writers)
"""


def save_and_fail(folder, mode):
    write_folder(folder, {"format_version": 1, "content": "old"}, {"vectors.faiss": lambda path: path.write_text("v")})
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), mode]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)


def test_a_full_disk_leaves_the_old_index(tmp_path):
    result = save_and_fail(tmp_path / "index", "full")
    assert "could not be written" in result.stderr and "untouched: make room and save again" in result.stderr
    assert read_folder(tmp_path / "index", format_version=1)[0]["content"] == "old"
    assert len(list((tmp_path / "index").iterdir())) == 2


def test_a_killed_save_leaves_the_old_index_and_the_next_one_cleans_up(tmp_path):
    folder = tmp_path / "index"
    assert save_and_fail(folder, "killed").returncode == -signal.SIGKILL
    assert len(list(folder.iterdir())) == 4
    assert read_folder(folder, format_version=1)[0]["content"] == "old"
    write_folder(folder, {"format_version": 1, "content": "newer"}, {})
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
