"""What differs on a GPU: devices must match, and the host should not wait. Run on a twin, see `twin.py`."""

from collections import Counter


def test_embeddings_are_those_of_the_cpu(run_on_cuda_twin):
    for mode, distances in run_on_cuda_twin("forward").items():
        assert len(distances) == 3 and max(distances) < 1e-5, (mode, distances)


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
