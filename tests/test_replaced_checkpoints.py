"""Checkpoints that are replaced: killed at any step, a folder loads as the old one or the new one, or is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cde_hf import contextualize
from cde_hf.model_names import model_path
from cde_hf.saving import save_with_context


BIENCODER = Path(__file__).parent / "fixtures" / "golden" / "biencoder"
TEXTS = ["the dog and the cat", "the deep sea"]


@pytest.fixture
def old():
    model = SentenceTransformer(str(BIENCODER), device="cpu")
    return contextualize(model, ["the cat sleeps", "the dog barks", "the whale sings"], corpus_dim=3)


@pytest.fixture
def new():
    model = SentenceTransformer(str(BIENCODER), device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return contextualize(model, ["the deep sea", "the owl hunts by night"], corpus_dim=0)


def load(folder):
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


def vectors_or_none(folder):
    try:
        model = load(folder)
    except (OSError, ValueError):
        return None
    return model.encode(TEXTS, show_progress_bar=False)


def is_same(vectors, others):
    return vectors is not None and vectors.shape == others.shape and np.abs(vectors - others).max() < 1e-6


def is_change_of_the_checkpoint(event, details):
    places = {"os.rename": details[1:2], "os.remove": details[:1]}.get(event, ())
    return any(".cde-hf.new" not in str(place) for place in places)


@pytest.mark.parametrize("is_widened", [False, True])
def test_a_killed_save_is_never_a_mixture(old, new, is_widened, tmp_path, killed_at):
    if is_widened:
        old, new = new, old
    save_with_context(old, tmp_path / "old")
    outcomes, (before, after) = [], (model.encode(TEXTS) for model in (old, new))
    for number in range(1000):
        folder = tmp_path / f"model-{number}"
        shutil.copytree(tmp_path / "old", folder)
        was_killed = killed_at(number, save_with_context, new, folder, counts=is_change_of_the_checkpoint)
        found = vectors_or_none(folder)
        outcomes.append("old" if is_same(found, before) else "new" if is_same(found, after) else "refused")
        assert outcomes[-1] != "refused" or found is None, number  # another vector would be a mixture
        if outcomes[-1] == "refused":
            with pytest.raises(ValueError, match="were being replaced when a process was killed.*Run again"):
                model_path(str(folder))
        save_with_context(new, folder)
        assert is_same(vectors_or_none(folder), after)
        assert not list(folder.glob(".*"))
        if not was_killed:
            break
        shutil.rmtree(folder)
    assert outcomes[0] == "old" and outcomes[-1] == "new" and len(outcomes) > 10
    assert sorted(outcomes, key=["old", "refused", "new"].index) == outcomes


def test_files_of_the_user_stay(old, new, tmp_path):
    save_with_context(old, tmp_path)
    for name in ("model-of-mine.safetensors", "context.safetensors"):
        (tmp_path / name).write_text("years of work")
    save_with_context(new, tmp_path)
    for name in ("model-of-mine.safetensors", "context.safetensors"):
        assert (tmp_path / name).read_text() == "years of work"
    assert not (tmp_path / "2_CorpusPart").exists()


def test_a_damaged_checkpoint_is_refused_by_name(old, tmp_path):
    old.save(str(tmp_path))
    (tmp_path / "README.md").write_text("my own card")
    assert model_path(str(tmp_path)) == str(tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-9] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="model.safetensors` has other contents than were written. Save the model"):
        model_path(str(tmp_path))


def test_a_mount_point_takes_a_checkpoint(old, new, mount):
    folder = mount("model", 1 << 22)
    for model in (old, new):
        save_with_context(model, folder)
        assert is_same(vectors_or_none(folder), model.encode(TEXTS))


def test_a_folder_of_another_library_loads_but_is_not_replaced(old, tmp_path):
    plain = SentenceTransformer(str(BIENCODER), device="cpu")
    plain.save(str(tmp_path / "model"))
    assert is_same(load(model_path(str(tmp_path / "model"))).encode(TEXTS), plain.encode(TEXTS))
    with pytest.raises(ValueError, match="is no folder of this package for the checkpoint"):
        old.save(str(tmp_path / "model"))
    assert is_same(load(tmp_path / "model").encode(TEXTS), plain.encode(TEXTS))


def test_all_files_have_one_mode(old, tmp_path):
    old.save(str(tmp_path / "model"))
    assert len({path.stat().st_mode for path in (tmp_path / "model").rglob("*") if path.is_file()}) == 1
