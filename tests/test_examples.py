"""Every example runs, with tiny arguments."""

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
    assert len(path.read_text().splitlines()) <= 110
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
    *("--output_dir", "model", "--max_pairs", "400", "--max_steps", "2", "--per_device_train_batch_size", "8"),
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
    verbs = ("Sort", "Open", "Close", "Read")
    pairs = [{"query": f"{verb} {n}", "document": f"{verb}s number {n}."} for verb in verbs for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    run("train.py", *TINY_TRAINING, "--data", "pairs.jsonl", folder=tmp_path)
    check_trained_model(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--cpu", "--num_processes", "2"), ("--config_file", str(EXAMPLES / "accelerate_configs" / "cpu.yaml"))],
)
def test_train_on_two_processes(tmp_path, options):
    run("train.py", *TINY_TRAINING, folder=tmp_path, launcher=(*ACCELERATE, *options))
    check_trained_model(tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "checkpoint-2" / "checkpoint_manifest.json").read_text())
    assert manifest["run"]["num_processes"] == 2
