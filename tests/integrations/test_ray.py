"""Encoding on a Ray cluster of two nodes on this machine: the same bytes as one process, whatever is killed."""

import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cde_hf.encoding import EncodedCorpus


ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402


NUM_FILES, TEXTS_PER_FILE = 10, 48
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(NUM_FILES):
        texts = [
            f"Text {row} of file {number} is about " + "the sea and the moon " * 12 for row in range(TEXTS_PER_FILE)
        ]
        pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet")
    return folder


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    yield cluster
    cluster.shutdown()


def command(corpus, folder, *options):
    return [sys.executable, "-m", "cde_hf.cli", "encode", "minilm", corpus, folder, "--contextualize", *options]


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    """The files of one process."""
    folder = tmp_path_factory.mktemp("one") / "out"
    subprocess.run(command(corpus, folder), check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return contents(folder)


def contents(folder):
    return {path.name: path.read_bytes() for path in EncodedCorpus.load(folder).paths}


def wait_for_files(folder, count, driver):
    while len(list(folder.glob("*.parquet"))) < count:
        assert driver.poll() is None, "the driver has ended"
        time.sleep(0.05)


def test_nodes_that_die_lose_nothing(cluster, corpus, expected, tmp_path):
    node = cluster.add_node(**NODE)
    driver = subprocess.Popen(command(corpus, tmp_path / "out", "--ray", cluster.address))
    for count in (2, 5):
        wait_for_files(tmp_path / "out", count, driver)
        cluster.remove_node(node, allow_graceful=False)
        node = cluster.add_node(**NODE)
    assert driver.wait(timeout=900) == 0
    assert contents(tmp_path / "out") == expected


def test_a_driver_that_was_killed_resumes(cluster, corpus, expected, tmp_path):
    cluster.add_node(**NODE)
    run = command(corpus, tmp_path / "out", "--ray", cluster.address)
    driver = subprocess.Popen(run)
    wait_for_files(tmp_path / "out", 3, driver)
    second = subprocess.run(run, capture_output=True, text=True, check=False)
    assert second.returncode != 0 and "Another process is writing to" in second.stderr
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.parquet")}
    subprocess.run(run, check=True)
    assert contents(tmp_path / "out") == expected
    assert len(done) >= 3 and all(path.stat().st_ino == number for path, number in done.items())


def test_a_bad_file_is_named_and_the_rest_is_encoded(corpus, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("0.parquet", "1.parquet"):
        content = (corpus / name).read_bytes()
        (folder / name).write_bytes(content[:4] + bytes(60) + content[64:] if name == "0.parquet" else content)
    run = [*command(folder, tmp_path / "out", "--ray", "local")]
    run.remove("--contextualize")
    result = subprocess.run(run, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "1 shards could not be encoded, such as `0.parquet`" in result.stderr
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == ["1.parquet"]


SHORT_PATIENCE = """
import sys
import ray.data
ray.data.DataContext.get_current().execution_no_progress_timeout_s = 0.5
from cde_hf.cli import main
main(sys.argv[1:])
"""


def test_files_may_take_longer_than_ray_waits(corpus, expected, tmp_path):
    arguments = command(corpus, tmp_path / "out", "--ray", "local")[3:]
    subprocess.run([sys.executable, "-c", SHORT_PATIENCE, *arguments], check=True)
    assert contents(tmp_path / "out") == expected


def test_a_full_disk_is_named_and_the_run_resumes(corpus, expected, tmp_path, mount):
    sizes = [len(content) for content in expected.values()]
    rest = 500_000  # manifest and context
    out = mount("out", rest + sum(sizes[:4]))
    run = command(corpus, out, "--ray", "local")
    result = subprocess.run(run, capture_output=True, text=True, check=False)
    assert result.returncode != 0 and "could not be written: the disk is full" in result.stderr
    done = {path: path.stat().st_ino for path in out.glob("*.parquet")}
    assert 0 < len(done) < NUM_FILES and not list(out.glob(".*.new"))
    subprocess.run(["mount", "-o", f"remount,size={10 * sum(sizes)}", out], check=True)
    subprocess.run(run, check=True)
    assert contents(out) == expected
    assert all(path.stat().st_ino == number for path, number in done.items())


def test_only_parquet_files_are_given_to_a_cluster(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "a"}\n')
    run = command(tmp_path / "corpus.jsonl", tmp_path / "out", "--ray", "local")
    result = subprocess.run(run, capture_output=True, text=True, check=False)
    assert result.returncode != 0 and "A cluster encodes Parquet files, but the corpus is" in result.stderr
