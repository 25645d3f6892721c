"""
One step under torch's `fully_shard`, on each process of `torchrun`, against the same step without it.

`fsdp_worker.py OUTPUT` writes the largest error of each gradient, and how often gradients were reduced.
"""

import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from transformers.modeling_layers import GradientCheckpointingLayer


sys.path.insert(0, str(Path(__file__).parent))
import tiny_runs

from cde_hf.trainer import GradientCache, filtered_info_nce
from cde_hf.trainer.step import Encoder, MiniBatchSize, Step, Texts, gather_rows


NUM_QUERIES = 4


class CountingReduceScatter(DefaultReduceScatter):
    """Counts how often gradients are sent."""

    num_calls = 0

    def __call__(self, *arguments, **options):
        self.num_calls += 1
        return super().__call__(*arguments, **options)


def random_texts(num_texts, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(9) < torch.randint(2, 10, (num_texts, 1), generator=generator)).long()
    ids = torch.randint(4, 100, mask.shape, generator=generator) * mask
    return Texts(ids, mask, mask.sum(dim=1).tolist())


def loss_of(rank, num_processes):
    def loss_function(embeddings):
        queries, documents = embeddings.split(NUM_QUERIES)
        documents = gather_rows(documents, (NUM_QUERIES,) * num_processes)
        positives = torch.arange(rank * NUM_QUERIES, (rank + 1) * NUM_QUERIES)
        return filtered_info_nce(queries, documents, logit_scale=5.0, positives=positives)

    return loss_function


def compute(model, rank, num_processes, no_sync, touch_all):
    cache = GradientCache(
        Encoder(model, model),
        mini_batch_size=MiniBatchSize(3),
        context_mini_batch_size=MiniBatchSize(2),
        no_sync=no_sync,
        touch_all=touch_all,
    )
    texts, documents = random_texts(2 * NUM_QUERIES, rank), random_texts(6, 99)
    step = Step(texts, NUM_QUERIES, documents, num_parts=num_processes, process_index=rank)
    cache.compute_loss(step, loss_of(rank, num_processes)).loss.backward()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, num_processes = dist.get_rank(), dist.get_world_size()
    results = {}
    for kind in ("joint", "prefix"):
        plain = tiny_runs.make_model(kind, dtype="float64").train()

        @contextmanager
        def nothing():
            yield

        compute(plain, rank, num_processes, nothing, touch_all=True)
        for parameter in plain.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= num_processes

        sharded = tiny_runs.make_model(kind, dtype="float64").train()
        for module in sharded.modules():  # each layer, and then the rest: as accelerate does it
            if isinstance(module, GradientCheckpointingLayer):
                fully_shard(module)
        fully_shard(sharded)

        @contextmanager
        def no_sync(model=sharded):
            model.set_requires_gradient_sync(False)
            yield
            model.set_requires_gradient_sync(True)

        counter = CountingReduceScatter()
        groups = [module for module in sharded.modules() if isinstance(module, FSDPModule)]
        for module in groups:
            module.set_custom_reduce_scatter(counter)
        compute(sharded, rank, num_processes, no_sync, touch_all=False)
        errors = {}
        for (name, parameter), (_, expected) in zip(sharded.named_parameters(), plain.named_parameters(), strict=True):
            if parameter.grad is None:
                errors[name] = float(expected.grad.abs().max())
                continue
            largest = float(expected.grad.abs().max())
            errors[name] = float((parameter.grad.full_tensor() - expected.grad).abs().max()) / (largest or 1.0)
        results[kind] = {
            "errors": errors,
            "num_reduced": counter.num_calls,
            "num_groups": len(groups),
            "num_zero": sum(float(parameter.grad.abs().max()) == 0 for parameter in plain.parameters()),
        }
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    time.sleep(0.2)  # as `cde_hf.processes` does at exit: torch 2.13 may abort a process that ends at once
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
