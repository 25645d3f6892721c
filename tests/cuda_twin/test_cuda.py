"""What differs on a GPU: devices must match, and the host should not wait. Run on a twin, see `twin.py`."""

from collections import Counter

import pytest


@pytest.mark.parametrize("family", ["nomic_bert", "modernbert", "bert", "roberta", "distilbert"])
def test_embeddings_are_those_of_the_cpu(run_on_cuda_twin, family):
    for mode, distances in run_on_cuda_twin("forward", family=family).items():
        assert len(distances) == 4 and max(distances.values()) < 5e-5, (mode, distances)


def test_the_default_attention_is_sdpa_for_every_family(run_on_cuda_twin):
    assert run_on_cuda_twin("attention_implementations") == ["sdpa"]


@pytest.mark.parametrize("is_padded", [True, False])
def test_flash_attention_is_sdpa_and_waits_once_per_batch(run_on_cuda_twin, is_padded):
    for mode, (distances, syncs) in run_on_cuda_twin("flash_attention", is_padded=is_padded).items():
        assert distances["float32"] < 1e-5 and distances["bfloat16"] < 0.1, (mode, distances)
        assert sum(syncs.values()) <= 1, (mode, syncs)  # transformers asks once whether anything is padding


@pytest.mark.parametrize("kind", ["joint", "prefix"])
def test_gradients_are_those_of_the_cpu(run_on_cuda_twin, kind):
    assert run_on_cuda_twin("gradients", kind=kind) < 1e-5


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["joint", "prefix"])
def test_a_repeated_mini_batch_has_the_same_bits(run_on_cuda_twin, kind, precision):
    result = run_on_cuda_twin("replay", kind=kind, precision=precision)
    assert set(result["parts"]) == {"context", "texts"} | ({"block"} if kind == "prefix" else set())
    assert result["parts"].count("texts") == 6  # of 16 texts, 3 at once
    assert not result["other bits"], result


def test_mixed_devices_are_an_error_as_on_a_gpu(run_on_cuda_twin):
    message = run_on_cuda_twin("mixed_devices")
    assert "found at least two devices, cuda:0 and cpu" in message
    assert "second_stage.py:" in message


def test_a_context_loaded_on_the_cpu_serves_a_model_on_the_gpu(run_on_cuda_twin):
    distances = run_on_cuda_twin("context_from_the_cpu")
    assert max(distances.values()) < 1e-5, distances


def test_a_context_of_the_cpu_serves_a_sentence_transformer_on_the_gpu(run_on_cuda_twin):
    distances = run_on_cuda_twin("sentence_transformer_with_a_context_from_the_cpu")
    assert max(distances.values()) < 1e-5, distances


def test_a_context_of_the_gpu_serves_a_sentence_transformer_on_the_cpu(run_on_cuda_twin):
    distances = run_on_cuda_twin("sentence_transformer_with_a_context_from_the_device")
    assert max(distances.values()) < 1e-5, distances


def test_encode_waits_for_the_device_at_most_once_per_batch(run_on_cuda_twin):
    for mode, counters in run_on_cuda_twin("syncs_of_encode").items():
        two, four = map(Counter, counters)
        added = four - two
        assert added.total() <= 2, f"Two more batches add these host syncs in {mode} attention: {dict(added)}"


def test_more_mini_batches_do_not_make_a_training_step_wait_more_often(run_on_cuda_twin):
    for mode, counters in run_on_cuda_twin("syncs_of_training").items():
        two, six = map(Counter, counters)
        added = six - two
        assert two.total() > 0  # the loss and the metrics are read
        assert not added, f"Six mini-batches instead of two add these host syncs in {mode} attention: {dict(added)}"
