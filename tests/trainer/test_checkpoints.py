"""Complete and incomplete checkpoints."""

import subprocess
import sys

import pytest

from cde_hf import BatchPlan
from cde_hf.files import MANIFEST
from cde_hf.trainer import find_last_checkpoint
from cde_hf.trainer.checkpoints import read_manifest, write_manifest


@pytest.fixture
def output_dir(tmp_path):
    """Folder with checkpoints of the steps 2, 10 and 9, all complete."""
    for step in (2, 10, 9):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "optimizer.pt").write_bytes(b"moments")
        write_manifest(folder, {"seed": step})
    return tmp_path


def test_the_highest_step_is_found(output_dir):
    assert find_last_checkpoint(output_dir).name == "checkpoint-10"
    assert read_manifest(output_dir / "checkpoint-9") == {"seed": 9}


def cut(folder):
    (folder / "optimizer.pt").write_bytes(b"mom")


def flip(folder):
    (folder / "optimizer.pt").write_bytes(b"momentz")


def lose(folder):
    (folder / "optimizer.pt").unlink()


def unmark(folder):
    (folder / MANIFEST).unlink()


def corrupt_manifest(folder):
    (folder / MANIFEST).write_text('{"files": {')


@pytest.mark.parametrize("damage", [cut, flip, lose, unmark, corrupt_manifest])
def test_incomplete_checkpoints_are_skipped(output_dir, damage):
    damage(output_dir / "checkpoint-10")
    assert find_last_checkpoint(output_dir).name == "checkpoint-9"
    with pytest.raises(
        ValueError, match="is not a complete checkpoint.*Resume from another checkpoint, or with `auto`"
    ):
        read_manifest(output_dir / "checkpoint-10")


def test_there_may_be_none(tmp_path):
    (tmp_path / "checkpoint-best").mkdir()
    assert find_last_checkpoint(tmp_path) is None


TRAIN = """
import sys, time
from cde_hf.files import CHECKPOINT
with CHECKPOINT.locked(sys.argv[1]):
    print("training", flush=True)
    time.sleep(60)
"""


def test_a_second_training_in_a_folder_is_refused_until_the_first_one_dies(tiny, plan_folder, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", TRAIN, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "training\n"
    trainer = tiny.make_trainer(tiny.make_model("prefix"), tmp_path, plan=BatchPlan.load(plan_folder), max_steps=1)
    with pytest.raises(BlockingIOError, match="Another process is writing to .* Wait until it ends, or give another"):
        trainer.train()
    process.kill()
    process.wait()
    trainer.train()
    trainer.save_model()
    assert trainer.state.global_step == 1


def test_a_folder_with_other_files_is_refused_before_the_training(tiny, plan_folder, tmp_path):
    (tmp_path / "model-of-mine.safetensors").write_text("years of work")
    trainer = tiny.make_trainer(tiny.make_model("prefix"), tmp_path, plan=BatchPlan.load(plan_folder), max_steps=1)
    with pytest.raises(ValueError, match=r"for the checkpoint, but has files such as \['model-of-mine.safetensors'\]"):
        trainer.train()
    assert trainer.state.global_step == 0
