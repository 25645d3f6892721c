"""Complete and incomplete checkpoints."""

import pytest

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
