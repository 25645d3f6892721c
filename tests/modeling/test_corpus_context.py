"""The file of a corpus context: what is written, and what is refused when it is read."""

import pytest
import torch
from safetensors.torch import save_file

from cde_hf import CorpusContext


@pytest.fixture
def context():
    return CorpusContext(torch.randn(3, 8), torch.rand(20), "first", "second", ("a", "b", "c"))


def test_a_missing_or_corrupt_file_is_named(tmp_path):
    path = tmp_path / "context.safetensors"
    with pytest.raises(FileNotFoundError, match="There is no file"):
        CorpusContext.load(path)
    path.write_bytes(b"corrupt")
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        CorpusContext.load(path)
    save_file({"embeddings": torch.zeros(3, 8)}, path)
    with pytest.raises(ValueError, match="contains no corpus context"):
        CorpusContext.load(path)


def test_a_failed_save_keeps_the_old_file(context, tmp_path, monkeypatch):
    path = tmp_path / "context.safetensors"
    context.save(path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("cde_hf.modeling.corpus_context.save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        context.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
