"""What a new user meets in the first hour: nothing is overwritten, mistakes are named, Ctrl-C is one line."""

import importlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from huggingface_hub import constants
from sentence_transformers import SentenceTransformer

from cde_hf import ContextualIndex, Evaluation, RetrievalSet, contextualize, encode_corpus, evaluate
from cde_hf.batching import surrogates
from cde_hf.batching.batch_plan import BATCH_PLAN
from cde_hf.cli import build_parser, main
from cde_hf.data import save_retrieval_set
from cde_hf.evaluation import Row
from cde_hf.files import CHECKPOINT
from cde_hf.index import contextual_index
from cde_hf.index.storage import INDEX
from cde_hf.messages import count_of, printable
from cde_hf.onnx import ONNX
from cde_hf.vectors import SentenceTransformerEmbedder


CORPUS = ["The cat sleeps on the sofa.", "A dog barks at the moon.", "The owl hunts by night."]


@pytest.fixture
def corpus_file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS))
    return str(path)


@pytest.fixture(scope="module")
def model(minilm):
    return contextualize(minilm, CORPUS)


def error_of(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code not in (0, None)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (CHECKPOINT, ["contextualize", "minilm", "corpus.txt", "OUT"]),
        (INDEX, ["index", "minilm", "corpus.txt", "OUT"]),
        (ONNX, ["export-onnx", "minilm", "OUT"]),
        (CHECKPOINT, ["convert", "minilm", "OUT"]),
        (CHECKPOINT, ["train", "--data", "docstrings", "--output-dir", "OUT", "--use-cpu"]),
    ],
)
def test_a_finished_folder_is_replaced_only_if_asked(kind, command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sentence_transformers.SentenceTransformer.__init__", lambda *args, **kwargs: 1 / 0)
    monkeypatch.setattr("cde_hf.trainer.script._train", lambda *args: 1 / 0)
    monkeypatch.setattr("cde_hf.CDEModel.from_pretrained", lambda *args: 1 / 0)
    out = tmp_path / "out"
    out.mkdir()
    (out / "weights.bin").write_text("an hour of work")
    kind.write_manifest(out)
    arguments = [str(out) if each == "OUT" else each for each in command]
    assert "`--overwrite`" in error_of(arguments, capsys)
    with pytest.raises(ZeroDivisionError):  # the work begins
        main([*arguments, "--overwrite"])
    assert (out / "weights.bin").read_text() == "an hour of work"


def test_a_run_is_removed_only_if_asked_and_when_all_data_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cde_hf.trainer.script_arguments.prepare_batch_plan", lambda *args, **kwargs: 1 / 0)
    (tmp_path / "pairs.csv").write_text("query,document\nWho barks?,A dog.\nWho sleeps?,A cat.\n")
    checkpoint, plan = tmp_path / "out" / "checkpoint-5", tmp_path / "out" / "plan"
    for folder, kind in {checkpoint: CHECKPOINT, plan: BATCH_PLAN}.items():
        folder.mkdir(parents=True)
        kind.write_manifest(folder, {"run": {}})
    command = ["train", "--output-dir", str(tmp_path / "out"), "--use-cpu", "--overwrite", "--data"]
    with pytest.raises(ZeroDivisionError):
        main([*command, str(tmp_path / "pairs.csv"), "--resume-from-checkpoint", "auto"])
    assert "is resumed, so `--overwrite` removes nothing" in capsys.readouterr().out
    assert "There is no file or folder" in error_of([*command, str(tmp_path / "gone.csv")], capsys)
    assert checkpoint.exists() and plan.exists()
    with pytest.raises(ZeroDivisionError):
        main([*command, str(tmp_path / "pairs.csv")])
    assert not checkpoint.exists() and not plan.exists()  # otherwise `auto` could resume the older run


def test_a_corpus_that_is_given_as_a_set_is_recognised(corpus_file, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "cat.md").write_text(CORPUS[0])
    (tmp_path / "faq.csv").write_text("question,answer\nWho barks?,A dog.\n")
    for path in (corpus_file, str(tmp_path / "notes"), str(tmp_path / "faq.csv")):
        hint = f"If it is a corpus without queries, use `cde-hf evaluate MODEL --corpus {path}`."
        assert hint in error_of(["evaluate", "minilm", "--data", path], capsys)
    error = error_of(["evaluate", "minilm", "--data", path, "--columns", "query=question", "document=text"], capsys)
    assert "has no column ['text']" in error and "--corpus" not in error


def test_named_files_are_replaced_only_if_asked(tmp_path, capsys):
    mine = tmp_path / "mine.json"
    mine.write_text("{}")
    assert "`--overwrite`" in error_of(["evaluate", "minilm", "--corpus", "absent", "--json", str(mine)], capsys)
    assert "`--overwrite`" in error_of(["inspect", str(tmp_path), "--html", str(mine)], capsys)
    assert f"`{mine}` holds no batch plan. Make one" in error_of(["inspect", str(mine), "--html", "page"], capsys)


def test_scores_are_saved_before_they_are_shown(animals, tmp_path, monkeypatch):
    monkeypatch.setattr(Evaluation, "to_markdown", lambda *args, **kwargs: 1 / 0)
    save_retrieval_set(animals, tmp_path / "animals")
    with pytest.raises(ZeroDivisionError):
        main(["evaluate", "minilm", "--data", str(tmp_path / "animals"), "--json", str(tmp_path / "scores.json")])
    assert Row("BM25") in Evaluation.from_json((tmp_path / "scores.json").read_text()).rows


def test_one_query_is_enough(tmp_path, capsys):
    corpus = {str(number): text for number, text in enumerate(CORPUS)}
    save_retrieval_set(RetrievalSet("pets", corpus, {"q": "Who barks?"}, {"q": {"1": 1}}), tmp_path / "pets")
    main(["evaluate", "minilm", "--data", str(tmp_path / "pets")])
    assert "| BM25 | 100.0 | 100.0 |" in capsys.readouterr().out


def test_ctrl_c_is_one_line(tmp_path, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("cde_hf.docstring_split", interrupt)
    monkeypatch.setattr("cde_hf.batching.BatchPlan.load", interrupt)
    for command, ending in {
        "prepare docstrings": " What was complete is kept: run the same command again.",
        "inspect": "",
    }.items():
        with pytest.raises(SystemExit) as stopped:
            main([*command.split(), str(tmp_path / "plan")])
        assert stopped.value.code == 130
        assert capsys.readouterr().err == f"\ncde-hf: interrupted.{ending}\n"


@pytest.mark.parametrize(
    "command",
    [
        "encode MODEL CORPUS OUT",
        "export-onnx MODEL OUT",
        "contextualize MODEL gone.txt OUT",
        "evaluate MODEL --corpus gone.txt",
        "train --model MODEL --data gone.jsonl --output-dir OUT --use-cpu",
    ],
)
def test_a_model_is_refused_at_once_if_the_hub_cannot_be_reached(command, corpus_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    values = {"MODEL": "no-model", "CORPUS": corpus_file, "OUT": str(tmp_path / "out")}
    start = time.monotonic()
    error = error_of([values.get(part, part) for part in command.split()], capsys)
    assert "`no-model` is no folder, and the Hub cannot be reached (" in error and error.count("\n") == 1
    assert time.monotonic() - start < 15


def test_options_are_named_as_options(tmp_path, capsys):
    path = tmp_path / "table.tsv"
    path.write_text("one\ttwo\na\tb\n")
    assert "in `--text-column`." in error_of(["evaluate", "minilm", "--corpus", str(path)], capsys)
    command = ["train", "--data", "docstrings", "--use-cpu", "--output-dir", str(tmp_path / "out")]
    assert "`--cluster-size` must be at least 2, got 1" in error_of([*command, "--cluster_size", "1"], capsys)
    assert "--cluster-size: must be a whole number" in error_of(["prepare", "a", "b", "--cluster_size", "x"], capsys)


def test_one_of_a_thing_is_no_plural(tmp_path, capsys):
    (tmp_path / "one.txt").write_text(CORPUS[0])
    main(["index", "minilm", str(tmp_path / "one.txt"), str(tmp_path / "index")])
    assert ": 1 document. Search it" in capsys.readouterr().out
    main(["encode", "minilm", str(tmp_path / "one.txt"), str(tmp_path / "encoded")])
    assert ": 1 document in 1 Parquet file. Make" in capsys.readouterr().out
    assert [count_of(*each) for each in ((1, "query"), (2000, "query"), (0, "pair"))] == [
        "1 query",
        "2,000 queries",
        "0 pairs",
    ]


def test_control_characters_never_reach_the_terminal(tmp_path, capsys):
    assert printable("red \x1b[31malert\x07\n\u202eabc") == "red  [31malert \n abc"
    assert "\x1b" not in error_of(["evaluate", "minilm", "--data", str(tmp_path / "\x1b[31mred")], capsys)


def test_help_shows_commands_in_groups(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--help"])
    text = capsys.readouterr().out
    assert text.index("\nsearch:") < text.index("  index  ") < text.index("\ntrain:") < text.index("  prepare ")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["evaluate", "--help"])
    text = capsys.readouterr().out
    assert "(default: ndcg@10)" in text and "(default: None)" not in text and "(default: False)" not in text


def test_a_model_that_is_not_there_is_named(corpus_file, tmp_path, capsys):
    for name in ("no-model", str(tmp_path / "absent"), "no/model"):
        error = error_of(["encode", name, corpus_file, str(tmp_path / "out")], capsys)
        assert f"`{name}` is neither a folder nor a model on the Hub" in error and error.count("\n") == 1
    error = error_of(["encode", str(tmp_path), corpus_file, str(tmp_path / "out")], capsys)
    assert f"`{tmp_path}` cannot be loaded as a model" in error and error.count("\n") == 1


def test_an_index_is_searched_from_another_folder(minilm, tmp_path, capsys, monkeypatch):
    minilm.save(str(tmp_path / "model"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS))
    main(["index", "model", "corpus.txt", "index"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    main(["search", "../index", "Who barks?", "--depth", "1"])
    assert "A dog barks" in capsys.readouterr().out
    (tmp_path / "model").rename(tmp_path / "moved")
    error = error_of(["search", "../index", "Who barks?"], capsys)
    assert f"was in `{tmp_path / 'model'}`, which is gone. Give it with `--model`" in error


class Bar:
    def __init__(self):
        self.steps = []

    def update(self, number):
        self.steps.append(number)
        return True  # as `tqdm` does if it shows the step


def test_progress_bars_move_with_each_batch(model):
    bar = Bar()
    embedder = SentenceTransformerEmbedder(model, "minilm", batch_size=2)
    texts = [*CORPUS, "A fox."]
    np.testing.assert_allclose(
        embedder.embed_in_pieces([*texts, "A cow."], bar)[:4],
        model.encode_document(texts, normalize_embeddings=True),
        atol=1e-6,
    )
    assert bar.steps == [2, 2, 1]
    embedder.embed_documents(texts)
    assert bar.steps == [2, 2, 1]


def test_an_interrupted_corpus_is_resumed_after_a_thousand_documents(minilm, tmp_path, monkeypatch):
    def interrupt(self, texts):
        if "last" in texts:
            raise KeyboardInterrupt
        return [[1.0, 0.0]] * len(texts)

    monkeypatch.setattr(SentenceTransformerEmbedder, "embed_documents", interrupt)
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(minilm, ["text"] * 3000 + ["last"], tmp_path / "out")
    assert len(list((tmp_path / "out").glob("shard-*"))) == 2


BROKEN = "sad \ud83d face"


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (["fine", None], TypeError, "must be texts, got None in `inputs`"),
        (["fine", 3], TypeError, "must be texts, got 3 in `inputs`"),
        ([b"bytes"], TypeError, "must be texts, got b'bytes' in `inputs`"),
        ([["nested"]], TypeError, r"must be texts, got \['nested'\] in `inputs`"),
        (["fine", BROKEN], ValueError, "in `inputs` has half of a character, such as a broken emoji: 'sad"),
    ],
)
def test_what_is_no_text_is_named_by_encode(model, inputs, error, message):
    with pytest.raises(error, match=message):
        model.encode(inputs)


def test_objects_say_what_they_are(model, animals, tmp_path):
    index = ContextualIndex.build(model, CORPUS)
    assert repr(index).startswith("ContextualIndex(3 documents, 640 dimensions, Context(")
    assert repr(animals) == "RetrievalSet('animals', 6 documents, 3 queries)"
    scores = {"pets": {Row("BM25"): {"ndcg@10": {"q": 0.5}}}}
    assert repr(Evaluation(scores, {}, None, 0)) == "Evaluation(ndcg@10 on pets: BM25: 50.0)"
    encoded = encode_corpus(model, CORPUS, tmp_path / "encoded")
    assert repr(encoded) == f"EncodedCorpus('{tmp_path / 'encoded'}', 3 documents)"


def test_the_model_of_an_index_is_stored_with_its_absolute_path(minilm, tmp_path, monkeypatch):
    minilm.save(str(tmp_path / "model"))
    monkeypatch.chdir(tmp_path)
    assert contextual_index.model_name(SentenceTransformer("model", device="cpu")) == str(tmp_path / "model")


def test_a_process_ends_when_its_launcher_is_gone():
    worker = (
        "import os, time\n"
        "os.environ['TORCHELASTIC_RUN_ID'] = 'none'\n"
        "from cde_hf.processes import process_state\n"
        "process_state()\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n"
    )
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", launcher], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGKILL)
    start = time.monotonic()
    error = process.stderr.read()  # ends with the worker, which holds the other side of the pipe
    assert "ends, because the launcher that started it is gone" in error
    assert time.monotonic() - start < 60


def test_an_empty_array_is_written_again(tmp_path):
    (tmp_path / "queries.npy").touch()
    (tmp_path / "queries.0.done").touch()
    vectors = surrogates.open_rows(tmp_path / "queries.npy", (2, 3), "float16")
    assert vectors.shape == (2, 3) and not (tmp_path / "queries.0.done").exists()


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"kind": "index"}', "[" * 10_000, "\xff"])
def test_other_json_is_one_line_that_names_the_file(content, tmp_path, capsys):
    for name in ("manifest.json", "scores.json"):
        (tmp_path / name).write_text(content, encoding="latin-1")
    for command in (["search", str(tmp_path), "query"], ["inspect", str(tmp_path)]):
        error = error_of(command, capsys)
        assert "manifest.json` is corrupt, or not from this version" in error or "holds: index, version" in error
    error = error_of(["push", str(tmp_path), "me/model", "--scores", str(tmp_path / "scores.json")], capsys)
    assert "scores.json` cannot be read." in error and error.count("\n") == 1
    if content not in ("{}", '{"kind": "index"}', "[]"):
        error = error_of(["push", str(tmp_path), "me/model", "--settings", str(tmp_path / "scores.json")], capsys)
        assert "scores.json` cannot be read as one JSON object" in error


WITHOUT_EXTRAS = """
import sys
sys.modules["faiss"] = sys.modules["pytrec_eval"] = None  # as if they were not installed
from cde_hf.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Training needs the extra `train`: `pip install 'cde-hf[train]'`."),
        (["evaluate", "no-model", "--corpus", "gone"], "package `pytrec_eval`: `pip install 'cde-hf[eval]'`."),
    ],
)
def test_a_missing_extra_is_one_line_before_any_work(arguments, message):
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *arguments]
    error = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert message in error and error.count("\n") == 1


def test_a_misspelt_option_shows_the_command_and_the_nearest_option(capsys):
    error = error_of(["contextualize", "minilm", "a.txt", "out", "--corpus-dims", "12"], capsys)
    assert error.startswith("usage: cde-hf contextualize") and "Did you mean --corpus-dim?" in error


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (None, TypeError, "`model` must be a sentence-transformers model.*got `None`"),
        ("no-such-model", FileNotFoundError, "`no-such-model` is neither a folder nor a model on the Hub"),
    ],
)
def test_what_is_no_model_is_named(model, error, message):
    with pytest.raises(error, match=message):
        contextualize(model, CORPUS)


def test_a_model_has_the_same_name_in_python_as_on_the_command_line():
    assert contextualize("minilm", CORPUS).encode("A cat").shape == (640,)


def test_a_model_that_is_not_wrapped_is_no_system(minilm, animals):
    with pytest.raises(TypeError, match="Wrap a model: `SentenceTransformerEmbedder"):
        evaluate([minilm], [animals])


def test_one_system_or_one_set_is_put_in_a_list(minilm, animals):
    embedder = SentenceTransformerEmbedder(minilm, "minilm")
    with pytest.raises(TypeError, match="`retrieval_sets` must be a list, got a `RetrievalSet`. Put it in a list"):
        evaluate([embedder], animals)
    with pytest.raises(TypeError, match="`systems` must be a list, got a `SentenceTransformerEmbedder`"):
        evaluate(embedder, [animals])


def test_the_bare_command_shows_its_help(capsys):
    main([])
    assert "adapt a model to a corpus:" in capsys.readouterr().out


def test_training_without_its_extra_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr("cde_hf.run_training", lambda arguments: importlib.import_module("cde_hf.trainer.script"))
    monkeypatch.setitem(sys.modules, "cde_hf.trainer.script", None)  # as where a package that it imports is missing
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "Training needs the extra `train`: `pip install 'cde-hf[train]'`" in capsys.readouterr().err
