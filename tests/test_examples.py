"""Every example runs, with tiny arguments. Those with other programs run in `tests/integrations`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoModel


EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments, folder, launcher=(sys.executable,)):
    command = [*launcher, str(EXAMPLES / name), *arguments]
    environment = {**os.environ, "HF_HOME": str(folder / "home")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_in_the_table(path):
    assert len(path.read_text().splitlines()) <= 120
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text()


def test_sentence_transformers_batches(tmp_path):
    arguments = [
        "--output",
        "model",
        "--steps",
        "2",
        "--batch-size",
        "8",
        "--cluster-size",
        "32",
        "--max-length",
        "16",
    ]
    output = run("sentence_transformers_batches.py", *arguments, "--libraries", "joblib", "requests", folder=tmp_path)
    assert "train_loss" in output
    assert SentenceTransformer(str(tmp_path / "model"), device="cpu").encode("text").shape == (384,)


TINY_TRAINING = [
    *("--data", "docstrings", "--max_pairs", "400", "--architecture", "contextual"),
    *("--output_dir", "model", "--max_steps", "2", "--per_device_train_batch_size", "8"),
    *("--mini_batch_size", "4", "--max_length", "16", "--context_size", "8", "--first_stage_layers", "1"),
    *("--gather_across_devices", "--warmup_steps", "0", "--save_steps", "1", "--cluster_size", "32"),
]
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch")


def check_trained_model(folder):
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    model[0].set_context(["Sorts a list.", "Opens a file."])
    assert model.encode(["Sort"]).shape == (1, 384)
    assert AutoModel.from_pretrained(folder, trust_remote_code=True).config.context_size == 8


def test_train(tmp_path):
    words = [f"{first}{second}" for first in ("sort", "open", "close", "read") for second in "abcdefghijklmnopqrst"]
    pairs = [{"query": f"how to {word} it", "document": f"{word}s thing{n}."} for n, word in enumerate(words)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    run("train.py", *TINY_TRAINING, "--data", "pairs.jsonl", folder=tmp_path)
    check_trained_model(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"),
        (*ACCELERATE, "--config_file", str(EXAMPLES / "accelerate_configs" / "cpu.yaml")),
    ],
    ids=["torchrun", "accelerate"],
)
def test_train_on_two_processes(tmp_path, launcher):
    run("train.py", *TINY_TRAINING, folder=tmp_path, launcher=launcher)
    check_trained_model(tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "checkpoint-2" / "manifest.json").read_text())
    assert manifest["run"]["num_processes"] == 2


# The pipelines of other libraries, in one process: each takes seconds to import.
PIPELINES = {
    "retrieval_evaluator.py": ["--library", "joblib", "--pairs", "100"],
    "hard_negatives.py": ["--library", "joblib", "--pairs", "60"],
    "bertopic_topics.py": ["--libraries", "joblib", "--documents", "60", "--topics", "3"],
}
SCRIPT = """
import json, runpy, sys
for path, arguments in json.loads(sys.argv[1]).items():
    print("running", path.rpartition("/")[2], flush=True)
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")
"""


def test_the_pipelines_of_other_libraries_run(tmp_path):
    pytest.importorskip("bertopic")
    runs = {str(EXAMPLES / name): arguments for name, arguments in PIPELINES.items()}
    command = [sys.executable, "-c", SCRIPT, json.dumps(runs)]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    outputs = dict(part.split("\n", 1) for part in result.stdout.split("running ")[1:])

    scores = [float(line.split()[-1]) for line in outputs["retrieval_evaluator.py"].splitlines()[-2:]]
    assert all(20 < score < 100 for score in scores) and scores[0] != scores[1]

    rows = [json.loads(line) for line in (tmp_path / "pairs_with_negatives.jsonl").read_text().splitlines()]
    assert f"{len(rows)} of 60 pairs" in outputs["hard_negatives.py"] and len(rows) > 10
    assert all(len(row["negatives"]) == 2 and row["document"] not in row["negatives"] for row in rows)

    topic_sizes = [int(line.split()[1]) for line in outputs["bertopic_topics.py"].splitlines()[-3:]]
    assert sum(topic_sizes) == 60


@pytest.mark.parametrize("name", [*PIPELINES, "langchain_retriever.py", "chroma_collection.py"])
def test_a_pipeline_fits_on_one_screen(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 60


def test_held_out_libraries(tmp_path):
    run("train.py", *TINY_TRAINING, "--query_prompt", "", "--document_prompt", "", folder=tmp_path)
    sizes = ("--queries", "5", "--documents", "20")
    output = run("held_out_libraries.py", "model", *sizes, folder=tmp_path)
    contexts = [f"ours, {context} context" for context in ("no", "foreign", "own")]
    adapted = [f"minilm contextualized, {context} context" for context in ("foreign", "own")]
    rows = [line.split(" | ")[0].lstrip("| ") for line in output.splitlines() if line.startswith("| ")]
    assert rows[1:8] == ["BM25", "minilm", *adapted, *contexts]
    assert "With the library's own context the model scores" in output
    run("context_map.py", "model", "--contexts", "2", "--context-size", "8", folder=tmp_path)
    assert (tmp_path / "model" / "contexts.png").stat().st_size > 1000
