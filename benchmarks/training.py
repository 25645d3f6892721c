"""
Time and memory of a training step: biencoder, joint and prefix attention, plain and gradient-cached.

1. Times: all ways run in turn, several times; the best time of each counts. sentence-transformers' cached loss runs
   beside ours, on the same backbone and the same tokens.
2. Memory: each way and batch size in a process of its own; the peak of the first step and of several, above what the
   process held before, and of the whole process. Small batches take more steps, so that all see the same number of
   pairs: what the allocator has cut up and cannot use again grows with the number of mini-batches, not with the batch.

Read the ratios: the times belong to the machine.
"""

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn
from transformers import AutoModel, NomicBertConfig

from cde_hf import CDEConfig, CDEModel, GradientCache, filtered_info_nce
from cde_hf.trainer.encoders import Encoder
from cde_hf.trainer.mini_batches import MiniBatchSize, Texts
from cde_hf.trainer.steps import ContextInputs, StepInputs, embed_plainly


VOCAB_SIZE, NUM_SURROGATE_DIMS = 30_528, 128
KINDS = ("biencoder", "prefix", "joint")
MEASURES = ("MiB above the start, first step", "MiB above the start, as many pairs", "MiB of the whole process")


def build_model(kind: str, args: argparse.Namespace) -> nn.Module:
    """A NomicBERT biencoder, or a contextual model of two of them, with random weights."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": args.width,
        "intermediate_size": 4 * args.width,
        "num_hidden_layers": args.layers,
        "num_attention_heads": max(1, args.width // 64),
    }
    if kind == "biencoder":
        return AutoModel.from_config(NomicBertConfig(**sizes)).train()
    config = CDEConfig(
        first_stage_config=sizes, second_stage_config=sizes, context_size=args.context_size, context_attention=kind
    )
    return CDEModel(config).train()


def make_step(batch_size: int, args: argparse.Namespace) -> StepInputs:
    """Random queries and documents of one length, the first documents being the context."""
    ids = torch.randint(1000, VOCAB_SIZE, (2 * batch_size, args.length))
    texts = Texts(ids, torch.ones_like(ids))
    num_documents = min(batch_size, args.context_size)
    documents = texts.select(torch.arange(batch_size, batch_size + num_documents))
    return StepInputs(texts, batch_size, ContextInputs(documents, (num_documents,)))


def run_step(model: nn.Module, step: StepInputs, mini_batch_size: int | None) -> None:
    """Loss and gradients of one step."""
    encoder = Encoder(model, model)

    def loss_function(embeddings):
        queries, documents = embeddings.split(step.num_queries)
        return filtered_info_nce(queries, documents, logit_scale=50.0, block_size=256)

    if mini_batch_size is None:
        output = loss_function(embed_plainly(encoder, step))
    else:
        size = MiniBatchSize(mini_batch_size)
        cache = GradientCache(encoder, mini_batch_size=size, context_mini_batch_size=size)
        output = cache.compute_loss(step, loss_function)
    output.loss.backward()
    model.zero_grad()


def sentence_transformers_step(model: nn.Module, step: StepInputs, mini_batch_size: int) -> Callable[[], None]:
    """The same step by `CachedMultipleNegativesRankingLoss`, around the same backbone."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    class Tokens(nn.Module):
        """Mean of the token vectors, as a module of sentence-transformers."""

        def __init__(self):
            super().__init__()
            self.encoder = model

        def forward(self, features, **kwargs):
            output = self.encoder(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
            features["sentence_embedding"] = output.last_hidden_state.mean(dim=1)
            return features

    loss = CachedMultipleNegativesRankingLoss(
        SentenceTransformer(modules=[Tokens()], device="cpu"), scale=50.0, mini_batch_size=mini_batch_size
    )
    sides = (slice(step.num_queries), slice(step.num_queries, None))

    def run() -> None:
        features = [
            {"input_ids": step.texts.input_ids[side], "attention_mask": step.texts.attention_mask[side]}
            for side in sides
        ]
        loss(features, None).backward()
        model.zero_grad()

    return run


def best_times(functions: dict[str, Callable[[], None]], num_rounds: int) -> dict[str, float]:
    """Best time of each function over rounds in which they take turns, after one round to warm up."""
    times = dict.fromkeys(functions, float("inf"))
    for number in range(num_rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number > 0:
                times[name] = min(times[name], time.perf_counter() - start)
    return times


def filter_time(batch_size: int) -> Callable[[], None]:
    """The matrix product and the comparison that the false-negative filter costs."""
    queries = np.random.default_rng(0).standard_normal((batch_size, NUM_SURROGATE_DIMS), dtype=np.float32)

    def run() -> None:
        scores = queries @ queries.T
        _ = scores >= np.diagonal(scores)[:, None]

    return run


def time_table(args: argparse.Namespace) -> list[str]:
    """Times of all ways at one batch size."""
    step = make_step(args.batch_size, args)
    functions: dict[str, Callable[[], None]] = {"filter": filter_time(args.batch_size)}
    for kind in KINDS:
        model = build_model(kind, args)
        functions[f"{kind}, plain"] = partial(run_step, model, step, None)
        functions[f"{kind}, cached"] = partial(run_step, model, step, args.mini_batch_size)
        if kind == "biencoder":
            functions["sentence-transformers, cached"] = sentence_transformers_step(model, step, args.mini_batch_size)
    times = best_times(functions, args.rounds)
    lines = [
        f"{args.layers} layers of width {args.width}, batch {args.batch_size}, mini-batch {args.mini_batch_size}, "
        f"texts of {args.length} tokens, {args.context_size} context documents, best of {args.rounds}:\n",
        "| step | seconds | to our cached biencoder | to itself, plain |",
        "|---|---|---|---|",
    ]
    for name, seconds in times.items():
        plain = times.get(name.replace("cached", "plain"))
        to_plain = f"{seconds / plain:.2f}x" if plain and name.endswith("cached") else ""
        lines.append(f"| {name} | {seconds:.3f} | {seconds / times['biencoder, cached']:.3f}x | {to_plain} |")
    return lines


def peak_memory(
    kind: str, batch_size: int, num_steps: int, mini_batch_size: int | None, args: argparse.Namespace
) -> tuple[float, ...]:
    """The numbers of `MEASURES`, in MiB, of some steps in this process."""
    torch.set_num_threads(1)
    model, step = build_model(kind, args), make_step(batch_size, args)
    run_step(model, make_step(2, args), mini_batch_size)  # so that libraries and gradients are there
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is held now
    before = psutil.Process().memory_info().rss / 2**20
    peaks = []
    for _ in range(num_steps):
        run_step(model, step, mini_batch_size)
        status = Path("/proc/self/status").read_text()
        peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024)
    return peaks[0] - before, peaks[-1] - before, peaks[-1]


def memory_tables(args: argparse.Namespace) -> list[str]:
    """Peak memory by batch size: a table for each measure."""
    context = multiprocessing.get_context("spawn")
    columns = [f"batch {size}" for size in args.memory_batch_sizes]
    tables = [
        [f"| {' | '.join([measure, *columns, 'ratio'])} |", "|---" * (len(columns) + 2) + "|"] for measure in MEASURES
    ]
    for kind in KINDS:
        for mini_batch_size in (args.mini_batch_size, None):
            sizes = args.memory_batch_sizes
            if mini_batch_size is None:
                sizes = [size for size in sizes if size <= args.max_plain_batch_size]
            numbers = []
            for batch_size in sizes:
                num_steps = max(sizes) // batch_size
                with context.Pool(1) as pool:
                    numbers.append(pool.apply(peak_memory, (kind, batch_size, num_steps, mini_batch_size, args)))
            way = "plain" if mini_batch_size is None else "cached"
            for table, peaks in zip(tables, zip(*numbers, strict=True), strict=True):
                cells = [f"{peak:.0f}" for peak in peaks] + [""] * (len(columns) - len(peaks))
                table.append(f"| {kind}, {way} | {' | '.join(cells)} | {peaks[-1] / peaks[0]:.2f}x |")
    return [line for table in tables for line in (*table, "")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="layers of each stage (default: 2)")
    parser.add_argument("--width", type=int, default=128, help="width of each stage (default: 128)")
    parser.add_argument("--length", type=int, default=64, help="tokens of a text (default: 64)")
    parser.add_argument("--context-size", type=int, default=64, help="context documents (default: 64)")
    parser.add_argument("--batch-size", type=int, default=256, help="pairs in a batch, for the times (default: 256)")
    parser.add_argument("--mini-batch-size", type=int, default=32, help="texts in a mini-batch (default: 32)")
    parser.add_argument("--memory-batch-sizes", type=int, nargs="+", default=[64, 256, 1024], help="for the memory")
    parser.add_argument("--max-plain-batch-size", type=int, default=256, help="largest batch without caching")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: 5)")
    parser.add_argument(
        "--tables", nargs="+", choices=["times", "memory"], default=["times", "memory"], help="what to measure"
    )
    args = parser.parse_args()
    tables = {"times": time_table, "memory": memory_tables}
    for name in args.tables:
        sys.stdout.write("\n".join([*tables[name](args), ""]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
