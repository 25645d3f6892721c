"""The recipes of cde-small's two phases at tiny size, on two processes, each killed in its middle and resumed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from cde_hf.saving import save_biencoder
from cde_hf.trainer import find_last_checkpoint


EXAMPLES = Path(__file__).parents[2] / "examples"
LAUNCH = [
    *(sys.executable, "-m", "accelerate.commands.launch"),
    *("--config_file", str(EXAMPLES / "accelerate_configs" / "cpu.yaml"), "--num_processes", "2"),
    *("--main_process_port", "0", str(EXAMPLES / "train.py")),
]


def write_pairs(path, tiny, num_negatives):
    rows = tiny.make_pairs(num_pairs=192, num_negatives=num_negatives)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(recipe, encoder, model, data, output, **changes):
    """The recipe, with models and sizes in place of those that need a GPU and the Hub."""
    options = {
        "model": model,
        "data": data,
        "surrogate": encoder,
        "filter_surrogate": encoder,
        "output_dir": output,
        "per_device_train_batch_size": 8,
        "mini_batch_size": 4,
        "max_length": 16,
        "cluster_size": 16,
        "dataloader_num_workers": 1,
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [*LAUNCH, str(EXAMPLES / "recipes" / recipe), *arguments]


def run(arguments, folder):
    result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-5000:]


def kill_after_a_checkpoint(arguments, folder, output):
    launcher = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not output.exists() or find_last_checkpoint(output) is None:
        assert launcher.poll() is None, "the run has ended"
        time.sleep(0.02)
    for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
        process.kill()
    launcher.wait()
    assert not (output / "model.safetensors").exists()


@pytest.mark.slow
def test_both_phases_are_killed_and_resume(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    encoder = tmp_path / "encoder"
    save_biencoder(tiny.make_model("plain"), tiny.make_tokenizer(), encoder)  # NomicBERT with two layers
    phases = [
        ("cde_small_weakly_supervised.yaml", 0, {"save_steps": 2, "context_size": 6}),
        ("cde_small_supervised.yaml", 1, {}),
    ]
    model = encoder
    for recipe, num_negatives, changes in phases:
        data = write_pairs(tmp_path / f"{recipe}.jsonl", tiny, num_negatives)
        whole, cut = (tmp_path / f"{recipe}-{name}" for name in ("whole", "cut"))
        run(command(recipe, encoder, model, data, whole, **changes), tmp_path)
        arguments = command(recipe, encoder, model, data, cut, **changes)
        kill_after_a_checkpoint(arguments, tmp_path, cut)
        run(arguments, tmp_path)
        expected, found = (load_file(folder / "model.safetensors") for folder in (whole, cut))
        assert expected.keys() == found.keys()
        assert all((found[name] == tensor).all() for name, tensor in expected.items())
        if model != encoder:
            start = load_file(model / "model.safetensors")
            assert any((start[name] != tensor).any() for name, tensor in expected.items())
        model = whole
