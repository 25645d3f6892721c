"""A run that was stopped and resumed ends bit-identical to one that was not."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from cde_hf import BatchPlan
from cde_hf.trainer import find_last_checkpoint, resumable_trainer


STEPS = 14  # an epoch has 8, or 4 with accumulation
MODEL = {"kind": "prefix", "dropout": 0.1, "sequence_dropout_prob": 0.1, "pooling": "context_frequency"}
ARGUMENTS = {
    "model": MODEL,
    "max_steps": STEPS,
    "per_device_train_batch_size": 16,
    "mini_batch_size": 6,
    "save_strategy": "steps",
    "save_total_limit": None,
    "max_grad_norm": 1.0,
}


class Diary(TrainerCallback):
    """Rows and context of every batch that the trainer saw."""

    def __init__(self):
        self.batches = []

    def watch(self, trainer):
        make_step = trainer._make_step

        def watching(inputs):
            self.batches.append((trainer.state.global_step, inputs["rows"], inputs.get("context_rows")))
            return make_step(inputs)

        trainer._make_step = watching


def final_state(trainer):
    """All that a run leaves: weights, optimizer, scheduler and random states."""
    return {
        "weights": {name: weights.clone() for name, weights in trainer.model.state_dict().items()},
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1],
        "python": random.getstate(),
        "step": trainer.state.global_step,
    }


def assert_same(found, expected, place=""):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            assert_same(found[key], value, f"{place}.{key}")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), place
    elif isinstance(expected, np.ndarray):
        assert np.array_equal(found, expected), place
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), place
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{place}[{index}]")
    else:
        assert found == expected, place


def make_run(tiny, plan_folder, folder, **changes):
    options = {**ARGUMENTS, **changes}
    model = tiny.make_model(**options.pop("model"))
    trainer = tiny.make_trainer(model, folder, pairs=tiny.make_pairs(), plan=BatchPlan.load(plan_folder), **options)
    diary = Diary()
    diary.watch(trainer)
    return trainer, diary


@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_checkpoint_leads_to_the_same_end(tiny, plan_folder, tmp_path, accumulation):
    changes = {"gradient_accumulation_steps": accumulation, "save_steps": 1 if accumulation == 2 else 2}
    trainer, diary = make_run(tiny, plan_folder, tmp_path, **changes)
    trainer.train()
    expected, batches = final_state(trainer), diary.batches
    steps = (1, 4, 7) if accumulation == 2 else (4, 8, 10)  # in an epoch, at its end, in the next one
    steps += (expected["step"],)  # and where nothing is left to do
    for step in steps:
        resumed, diary = make_run(tiny, plan_folder, tmp_path, **changes)
        resumed.train(str(tmp_path / f"checkpoint-{step}"))
        assert diary.batches == [batch for batch in batches if batch[0] >= step]
        assert_same(final_state(resumed), expected)


def test_a_run_that_forgets_the_random_state_is_noticed(tiny, plan_folder, tmp_path, monkeypatch):
    trainer, _ = make_run(tiny, plan_folder, tmp_path, save_steps=4)
    trainer.train()
    expected = final_state(trainer)
    resumed, _ = make_run(tiny, plan_folder, tmp_path)
    monkeypatch.setattr(resumed, "_load_rng_state", lambda checkpoint: None)
    resumed.train(str(tmp_path / "checkpoint-4"))
    with pytest.raises(AssertionError, match="weights"):
        assert_same(final_state(resumed), expected)


def test_a_plain_encoder_resumes_too(tiny, plan_folder, tmp_path):
    changes = {"model": {"kind": "plain", "dropout": 0.1}, "save_steps": 5, "mini_batch_size": None}
    trainer, _ = make_run(tiny, plan_folder, tmp_path, **changes)
    trainer.train()
    resumed, _ = make_run(tiny, plan_folder, tmp_path, **changes)
    resumed.train(str(tmp_path / "checkpoint-5"))
    assert_same(final_state(resumed), final_state(trainer))


class Signal(TrainerCallback):
    def __init__(self, number, times=1):
        self.number, self.times = number, times

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 5:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGINT, 2)])
def test_a_signal_saves_and_ends_cleanly(tiny, plan_folder, tmp_path, number, times):
    expected, _ = make_run(tiny, plan_folder, tmp_path / "whole", save_strategy="no")
    expected.train()
    trainer, _ = make_run(tiny, plan_folder, tmp_path / "cut", save_steps=100)
    trainer.add_callback(Signal(number, times))
    handler = signal.getsignal(number)
    trainer.train()
    assert trainer.was_terminated
    assert signal.getsignal(number) == handler
    assert find_last_checkpoint(tmp_path / "cut").name == "checkpoint-6"
    resumed, _ = make_run(tiny, plan_folder, tmp_path / "cut")
    resumed.train("auto")
    assert not resumed.was_terminated
    assert_same(final_state(resumed), final_state(expected))


def test_a_second_ctrl_c_stops_at_once_and_the_process_listens_again(tiny, plan_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("cde_hf.trainer.callbacks._SECONDS_OF_ONE_SIGNAL", 0)
    trainer, _ = make_run(tiny, plan_folder, tmp_path, save_steps=100)
    trainer.add_callback(Signal(signal.SIGINT, times=2))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert find_last_checkpoint(tmp_path) is None


class Failure(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        raise RuntimeError("a fault in the data")


def test_sigterm_ends_the_process_after_a_training_that_raised(tiny, plan_folder, tmp_path):
    trainer, _ = make_run(tiny, plan_folder, tmp_path)
    trainer.add_callback(Failure())
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert handlers[0] == signal.SIG_DFL
    with pytest.raises(RuntimeError, match="a fault in the data"):
        trainer.train()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def run_script(case, folder, *, kill_after=None):
    """Runs one case in a process of its own and gives its exit code."""
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps([{"name": "run", **case}]))
    script = Path(__file__).with_name("tiny_runs.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder / "cases.json"), str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if kill_after is not None:
        time.sleep(kill_after)
        process.kill()
    error = process.communicate(timeout=300)[1]
    if kill_after is None and "kill" not in case:
        assert process.returncode == 0, error[-3000:]
    return process.returncode


@pytest.fixture
def killed_case(plan_folder):
    return {
        **ARGUMENTS,
        "gradient_accumulation_steps": 2,
        "save_steps": 2,
        "plan_folder": plan_folder,
        "resume": "auto",
    }


def test_kill_9_while_saving_and_between_accumulated_batches(tiny, killed_case, plan_folder, tmp_path):
    assert run_script({**killed_case, "kill": ["save", 4]}, tmp_path / "cut") == -signal.SIGKILL
    assert (tmp_path / "cut" / "run" / "checkpoint-4").exists()
    assert find_last_checkpoint(tmp_path / "cut" / "run").name == "checkpoint-2"
    assert run_script({**killed_case, "kill": ["accumulation", 9]}, tmp_path / "cut") == -signal.SIGKILL
    assert find_last_checkpoint(tmp_path / "cut" / "run").name == "checkpoint-8"
    assert run_script(killed_case, tmp_path / "cut") == 0

    changes = {"gradient_accumulation_steps": 2, "save_strategy": "no"}
    whole, _ = make_run(tiny, plan_folder, tmp_path / "whole", **changes)
    whole.train()
    found = load_file(tmp_path / "cut" / "run.safetensors")
    assert_same({f"weights.{name}": v for name, v in whole.model.state_dict().items()}.keys() <= found.keys(), True)
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(found[f"weights.{name}"], weights), name


@pytest.mark.slow
def test_kill_9_at_random_moments(tiny, killed_case, plan_folder, tmp_path):
    generator = random.Random(0)
    case = {**killed_case, "save_steps": 1, "max_steps": 150}
    num_kills = 0
    while num_kills < 6 and run_script(case, tmp_path / "cut", kill_after=generator.uniform(4, 8)) != 0:
        num_kills += 1
    run_script(case, tmp_path / "cut")
    run_script({**case, "save_strategy": "no", "resume": None}, tmp_path / "whole")
    assert num_kills > 1
    found, expected = (load_file(tmp_path / name / "run.safetensors") for name in ("cut", "whole"))
    for name in expected:
        if name.startswith("weights."):
            assert torch.equal(found[name], expected[name]), name


def test_two_processes_resume_bit_identical(launch, plan_folder, tmp_path):
    common = {
        **ARGUMENTS,
        "per_device_train_batch_size": 8,
        "gather_across_devices": True,
        "gradient_accumulation_steps": 2,
        "plan_folder": plan_folder,
        "save_steps": 3,
    }
    folder = launch([{"name": "run", **common}], num_processes=2)
    expected = load_file(folder / "run.safetensors")
    for checkpoint in (folder / "run").glob("checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > 6:
            shutil.rmtree(checkpoint)
    (folder / "again").mkdir()
    shutil.copytree(folder / "run" / "checkpoint-6", folder / "again" / "checkpoint-6")
    resumed = launch([{"name": "run", **common, "resume": str(folder / "again" / "checkpoint-6")}], num_processes=2)
    found = load_file(resumed / "run.safetensors")
    weights = [name for name in expected if name.startswith("weights.")]
    assert weights
    for name in weights:
        assert torch.equal(found[name], expected[name]), name


def test_another_plan_or_setting_is_refused(tiny, plan_folder, tmp_path):
    trainer, _ = make_run(tiny, plan_folder, tmp_path / "run", save_steps=5, max_steps=5)
    trainer.train()
    other_plan = tiny.prepare_batch_plan(
        tiny.make_pairs(), tmp_path / "plan", surrogate=tiny.TfidfSurrogate(dim=4), cluster_size=9
    )
    other, _ = make_run(tiny, str(other_plan.folder), tmp_path / "run")
    with pytest.raises(ValueError, match="was saved by a run with `plan_fingerprint` .* which changes its batches"):
        other.train("auto")
    smaller, _ = make_run(tiny, plan_folder, tmp_path / "run", per_device_train_batch_size=8)
    with pytest.raises(ValueError, match="`batch_size` 16, but this run has 8"):
        smaller.train("auto")


def test_other_data_is_refused(tiny, plan_folder, tmp_path):
    trainer, _ = make_run(tiny, plan_folder, tmp_path / "run", save_steps=5, max_steps=5)
    trainer.train()
    pairs = tiny.make_pairs(seed=3)
    plan = tiny.make_plan(pairs, tmp_path / "plan")
    other = tiny.make_trainer(
        tiny.make_model(**MODEL), tmp_path / "run", pairs=pairs, plan=plan, per_device_train_batch_size=16
    )
    with pytest.raises(ValueError, match="was saved by a run with `data_fingerprint`"):
        other.train("auto")


def test_a_full_disk_leaves_the_old_checkpoints_whole(tiny, plan_folder, tmp_path, monkeypatch):
    trainer, _ = make_run(tiny, plan_folder, tmp_path, save_steps=3, save_total_limit=1)
    save = resumable_trainer.save_checkpoint

    def save_or_fail(model, tokenizer, folder, **options):
        if Path(folder).name == "checkpoint-6":
            raise OSError(28, "No space left on device")
        save(model, tokenizer, folder, **options)

    monkeypatch.setattr(resumable_trainer, "save_checkpoint", save_or_fail)
    with pytest.raises(OSError, match="No space left on device"):
        trainer.train()
    assert find_last_checkpoint(tmp_path).name == "checkpoint-3"


def test_older_checkpoints_go_only_when_the_new_one_is_whole(tiny, plan_folder, tmp_path):
    trainer, _ = make_run(tiny, plan_folder, tmp_path, save_steps=3, save_total_limit=2)
    trainer.train()
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-12", "checkpoint-14"}


def test_auto_begins_at_the_start_where_there_is_nothing(tiny, plan_folder, tmp_path):
    trainer, diary = make_run(tiny, plan_folder, tmp_path, max_steps=1, save_strategy="no")
    trainer.train("auto")
    assert [step for step, _, _ in diary.batches] == [0]
