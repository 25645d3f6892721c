"""The context: what it says of itself, how it moves, and what is refused when it is read from a file."""

import os
import stat

import pytest
import torch
from safetensors.torch import save_file

from cde_hf import Context
from cde_hf.modeling.context import as_context
from cde_hf.modeling.pooling import count_token_frequencies


@pytest.fixture
def context():
    return Context(torch.randn(3, 8), torch.rand(20), ((torch.randn(1, 2, 5, 4),) * 2,) * 2, 3, "0123456789abcdef")


def test_a_context_says_what_it_holds(context):
    parts = "3 documents, vectors of 8 dimensions, frequencies of 20 tokens, block of 2 layers"
    assert repr(context) == f"Context({parts})"
    assert repr(Context()) == "Context(empty)"


def test_a_saved_context_is_the_same_without_its_block(context, tmp_path):
    context.save(tmp_path / "context.safetensors")
    loaded = Context.load(tmp_path / "context.safetensors")
    assert (loaded.hash, loaded.num_documents, loaded.fingerprint) == (context.hash, 3, "0123456789abcdef")
    assert loaded.keys_values is None
    Context().save(tmp_path / "empty.safetensors")
    assert Context.load(tmp_path / "empty.safetensors").hash == Context().hash != context.hash


def test_a_context_moves_as_a_whole_and_stays_itself_if_nothing_changes(context):
    assert context.to("cpu") is context
    moved = context.to("meta", torch.bfloat16)
    block = [tensor for pair in moved.keys_values for tensor in pair]
    assert {(tensor.device.type, tensor.dtype) for tensor in block} == {("meta", torch.bfloat16)}
    kept = (moved.embeddings, moved.token_frequencies)
    assert {(tensor.device.type, tensor.dtype) for tensor in kept} == {("meta", torch.float32)}
    assert context.to(dtype=torch.bfloat16).hash == context.hash


def test_a_context_of_a_later_version_is_named(context, tmp_path):
    path = tmp_path / "context.safetensors"
    save_file({"a_later_part": torch.zeros(3)}, path, metadata={Context.format: "{}"})
    with pytest.raises(ValueError, match="contains a_later_part, which this version does not know. Update cde-hf"):
        Context.load(path)
    older = type("Context", (), {"format": Context.format, "embeddings": context.embeddings})()
    assert as_context(older).num_documents == 0


def test_a_context_of_another_copy_of_the_code_is_a_context(context):
    copy = type("Context", (), {"format": Context.format, **vars(context)})()
    assert as_context(copy).hash == context.hash
    assert as_context(["documents"]) is None and as_context(None) is None


def test_token_frequencies_are_counted_document_by_document():
    input_ids, mask = torch.randint(0, 30, (40, 25)), torch.rand(40, 25) < 0.8
    counted = count_token_frequencies(input_ids, mask.long(), 30)
    documents = [set(row[kept].tolist()) for row, kept in zip(input_ids, mask, strict=True)]
    expected = [sum(token in document for document in documents) / 40 for token in range(30)]
    torch.testing.assert_close(counted, torch.tensor(expected))


def test_a_missing_or_corrupt_file_is_named(tmp_path):
    path = tmp_path / "context.safetensors"
    with pytest.raises(FileNotFoundError, match="There is no file"):
        Context.load(path)
    path.write_bytes(b"corrupt")
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        Context.load(path)
    save_file({"embeddings": torch.zeros(3, 8)}, path)
    with pytest.raises(ValueError, match="contains no context"):
        Context.load(path)


def test_a_failed_save_keeps_the_old_file(context, tmp_path, monkeypatch):
    path = tmp_path / "context.safetensors"
    context.save(path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("cde_hf.modeling.context.save", fail)
    with pytest.raises(OSError, match="No space left"):
        context.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_flipped_byte_is_noticed(context, tmp_path):
    path = tmp_path / "context.safetensors"
    context.save(path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is corrupt: it has other numbers than were saved. Save the context again"):
        Context.load(path)


def test_the_mode_of_the_file_follows_the_umask(context, tmp_path):
    before = os.umask(0o027)
    try:
        context.save(tmp_path / "context.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "context.safetensors").stat().st_mode) == 0o640
