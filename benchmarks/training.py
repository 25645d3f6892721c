"""
Time of a training step by batch size: biencoder, prefix and joint attention, plain and gradient-cached.

sentence-transformers' cached loss runs on the same backbone and the same tokens. `filter` is the false-negative filter
of the same batch. At each batch size the plain steps take turns, then the cached steps, and the best time of each
counts. Compare the ratios, because the times depend on the machine.
"""

import argparse
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from timing import add_timing_arguments, best_times, write_header, write_row
from training_steps import KINDS, add_step_arguments, build_model, make_step, run_step, sentence_transformers_step

from cde_hf.batching import FalseNegativeFilter


NUM_PLAN_PAIRS, NUM_SURROGATE_DIMS = 100_000, 128
THEIRS = "sentence-transformers, cached"


def random_plan() -> SimpleNamespace:
    """Makes what the filter reads from a batch plan: vectors in half precision and hashes of the texts."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((2, NUM_PLAN_PAIRS, NUM_SURROGATE_DIMS), dtype=np.float32).astype(np.float16)
    hashes = generator.integers(0, 2**63, (NUM_PLAN_PAIRS, 2)).astype(np.uint64)
    return SimpleNamespace(
        filter_queries=vectors[0], filter_documents=vectors[1], text_hashes=hashes, negative_offsets=None
    )


def build_steps(batch_size: int, args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """All variants of a step at one batch size."""
    step = make_step(batch_size, args)
    rows = np.random.default_rng(0).choice(NUM_PLAN_PAIRS, batch_size, replace=False)
    steps: dict[str, Callable[[], object]] = {}
    for kind in KINDS:
        if kind == "joint" and batch_size > args.max_joint_batch_size:
            continue
        model = build_model(kind, args)
        if batch_size <= args.max_plain_batch_size:
            steps[f"{kind}, plain"] = partial(run_step, model, step, None)
        steps[f"{kind}, cached"] = partial(run_step, model, step, args.mini_batch_size)
        if kind == "biencoder":
            steps[THEIRS] = sentence_transformers_step(model, step, args.mini_batch_size)
    steps["filter"] = partial(FalseNegativeFilter(random_plan()), rows)
    return steps


def measure(steps: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Best time of each step, in seconds. Cached steps are close to each other, so they get more rounds."""
    is_close = {name: name.endswith("cached") and not name.startswith("joint") for name in steps}
    close = best_times({name: step for name, step in steps.items() if is_close[name]}, seconds)
    others = best_times({name: step for name, step in steps.items() if not is_close[name]}, seconds / 4)
    return {name: close.get(name, others.get(name)) for name in steps}


def write_times(batch_size: int, times: dict[str, float]) -> None:
    for name, seconds in times.items():
        plain = times.get(name.replace("cached", "plain"))
        to_plain = f"{seconds / plain:.2f}x" if plain and name.endswith("cached") else ""
        to_biencoder = seconds / times["biencoder, cached"]
        share = f"{100 * to_biencoder:.2f} %" if name == "filter" else f"{to_biencoder:.2f}x"
        write_row([batch_size, name, f"{1000 * seconds:.1f}", share, to_plain])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_step_arguments(parser)
    parser.add_argument(
        "--max-joint-batch-size", type=int, default=10**6, help="largest batch in joint attention (default: all)"
    )
    add_timing_arguments(parser, seconds=60)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    write_header(["batch", "step", "ms", "to our cached biencoder", "to itself, plain"])
    for batch_size in args.batch_sizes:
        write_times(batch_size, measure(build_steps(batch_size, args), args.seconds))


if __name__ == "__main__":
    main()
