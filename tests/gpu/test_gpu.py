"""What only a GPU can show: real kernels, memory, NCCL. `make test-gpu` runs it; without a GPU it is skipped."""

import json
from argparse import Namespace
from importlib.util import find_spec

import faiss
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cde_hf.batching import KMeansSettings, cluster_pairs, clustering


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
needs_flash = pytest.mark.skipif(find_spec("flash_attn") is None, reason="needs flash-attn, the extra `flash`")
needs_faiss_gpu = pytest.mark.skipif(clustering._num_gpus() == 0, reason="needs faiss-gpu, the extra `gpu`")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.fixture(params=["joint", "prefix"])
def mode(request):
    return request.param


@needs_flash
@pytest.mark.parametrize("is_padded", [True, False])
def test_flash_attention_gives_the_embeddings_and_gradients_of_sdpa(
    make_model, texts, context_documents, mode, is_padded
):
    model = make_model(context_attention=mode, sequence_dropout_prob=0.0).to("cuda").train()
    ids, mask = (tensor.to("cuda") for tensor in texts)
    mask = mask if is_padded else torch.ones_like(mask)
    documents = [tensor.to("cuda") for tensor in context_documents]
    weights = torch.randn(len(ids), model.config.hidden_size, device="cuda")

    def run(implementation, dtype):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            embeddings = model(ids, mask, *documents).embeddings.float()
        (embeddings * weights).sum().backward()
        gradients = [
            parameter.grad.float().flatten() for parameter in model.parameters() if parameter.grad is not None
        ]
        return embeddings.detach().flatten(), torch.cat(gradients)

    exact = run("sdpa", torch.float32)
    sdpa, flash = (run(name, torch.bfloat16) for name in ("sdpa", "flash_attention_2"))
    for found, other, expected in zip(flash, sdpa, exact, strict=True):
        assert found.isfinite().all()
        assert (found - expected).norm() < 2 * (other - expected).norm() + 1e-3 * expected.norm()


@needs_two
@pytest.mark.parametrize("kind", ["plain", "joint", "prefix"])
def test_two_gpus_make_the_gradients_of_one(launch, plan_folder, kind):
    common = {
        "name": "run",
        "model": {"kind": kind, "dtype": "float64"},
        "mini_batch_size": 3,
        "max_steps": 2,
        "plan_folder": plan_folder,
        "use_cpu": False,
        "gather_across_devices": True,
    }
    one, two = (
        launch([{**common, "per_device_train_batch_size": 16 // num_processes}], num_processes=num_processes)
        for num_processes in (1, 2)
    )
    assert json.loads((two / "run.json").read_text())["num_processes"] == 2
    expected, found = (load_file(folder / "run.safetensors") for folder in (one, two))
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() <= 1e-9 * max(1, tensor.abs().max()), name


@pytest.mark.parametrize("kind", ["biencoder", "joint", "prefix"])
def test_a_cached_batch_of_4096_needs_less_memory_than_a_plain_one_of_256(monkeypatch, kind):
    monkeypatch.syspath_prepend("benchmarks")
    from training_steps import build_model, make_step, run_step

    args = Namespace(layers=4, width=256, length=128, context_size=64)
    peaks = {}
    with torch.device("cuda"):
        model = build_model(kind, args)
        for batch_size, mini_batch_size in ((256, None), (256, 32), (4096, 32)):
            step = make_step(batch_size, args)
            run_step(model, make_step(2, args), mini_batch_size)  # allocates the gradients
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run_step(model, step, mini_batch_size)
            peaks[batch_size, mini_batch_size] = torch.cuda.max_memory_allocated() - before
    assert peaks[4096, 32] < peaks[256, None]
    # Beyond a mini-batch there are the scores of 4,096 x 4,096, some times, and the tokens and embeddings.
    assert peaks[4096, 32] - peaks[256, 32] < 10 * 4 * 4096**2


@needs_faiss_gpu
@pytest.mark.parametrize("num_clusters", [50, 500])
def test_clusters_of_the_gpu_are_as_good_as_those_of_the_cpu(monkeypatch, num_clusters):
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(num_clusters, 2, 16))
    pairs = centres[generator.integers(num_clusters, size=40 * num_clusters)]
    queries, documents = (pairs + 0.5 * generator.normal(size=pairs.shape)).astype(np.float32).transpose(1, 0, 2)

    def objective():
        settings = KMeansSettings(num_iterations=20, num_starts=2)
        cluster_ids, centroids = cluster_pairs(queries, documents, num_clusters, settings=settings)
        rows = np.concatenate([documents, queries], axis=1)
        return ((rows - centroids[cluster_ids]) ** 2).sum()

    assert faiss.get_num_gpus() > 0
    on_gpu = objective()
    monkeypatch.setattr(clustering, "_num_gpus", lambda: 0)
    assert on_gpu < 1.02 * objective()


def test_a_run_on_the_gpu_resumes_from_its_checkpoint(tiny, plan_folder, tmp_path):
    common = {
        "model": {"kind": "prefix", "dropout": 0.1, "sequence_dropout_prob": 0.1},
        "max_steps": 10,
        "mini_batch_size": 3,
        "plan_folder": plan_folder,
        "use_cpu": False,
        "bf16": True,
    }
    folder = tmp_path / "run"
    trainer, _, _ = tiny.run(folder, **common, save_strategy="steps", save_steps=5, save_total_limit=None)
    assert trainer.args.device.type == "cuda"
    resumed, _, _ = tiny.run(folder, **common, resume=str(folder / "checkpoint-5"))
    expected = trainer.model.state_dict()
    for name, tensor in resumed.model.state_dict().items():  # sums of a GPU are in no fixed order
        torch.testing.assert_close(tensor, expected[name], atol=1e-3, rtol=1e-2)
