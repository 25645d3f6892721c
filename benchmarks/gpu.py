"""
Time and memory on a GPU, in bfloat16 autocast: of a text at inference, and of a gradient-cached training step.

Each row is one model with one attention implementation. flash-attention is left out if it is not installed. On the CPU
the script only shows that it runs.
"""

import argparse
import time
from collections.abc import Callable

import torch
from timing import write_header, write_row
from torch import nn
from training_steps import KINDS, add_step_arguments, build_model, make_step, run_step
from transformers.utils import is_flash_attn_2_available

from cde_hf import CDEModel


def best_time(run: Callable[[], object], num_rounds: int) -> float:
    """Returns the best time in seconds, until the device has finished."""
    times = []
    for _ in range(num_rounds + 1):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])  # the first one warms up


def time_per_text(model: nn.Module, args: argparse.Namespace) -> float:
    """Returns milliseconds per text, in batches of `--texts`."""
    step = make_step(max(args.texts, args.context_size), args)
    ids, mask = step.texts.input_ids[: args.texts], step.texts.attention_mask[: args.texts]
    with torch.no_grad():
        if isinstance(model, CDEModel):
            documents = step.context_documents
            context = model.encode_context(documents.input_ids, documents.attention_mask)
            seconds = best_time(lambda: model.encode_texts(ids, mask, context=context), args.rounds)
        else:
            seconds = best_time(lambda: model(ids, mask), args.rounds)
    return 1000 * seconds / args.texts


def step_cells(model: nn.Module, args: argparse.Namespace) -> list[str]:
    """Returns seconds and peak memory of a step for each batch size. The memory is known on a GPU alone."""
    cells = []
    for batch_size in args.batch_sizes:
        step = make_step(batch_size, args)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        seconds = best_time(lambda step=step: run_step(model, step, args.mini_batch_size), args.rounds)
        peak = f"{torch.cuda.max_memory_allocated() / 2**20:.0f}" if torch.cuda.is_available() else ""
        cells += [f"{seconds:.2f}", peak]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="device (default: cuda)")
    parser.add_argument("--texts", type=int, default=64, help="texts at once at inference (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: 5)")
    add_step_arguments(parser)
    parser.set_defaults(layers=12, width=768, length=128, context_size=512, batch_sizes=[256, 4096])
    args = parser.parse_args()

    torch.set_default_device(args.device)
    columns = [f"batch {size}, {what}" for size in args.batch_sizes for what in ("s", "MiB")]
    write_header(["model", "attention", "ms per text", *columns])
    for kind in KINDS:
        for implementation in ("sdpa", *(["flash_attention_2"] if is_flash_attn_2_available() else [])):
            model = build_model(kind, args)
            model.set_attn_implementation(implementation)
            with torch.autocast(args.device, torch.bfloat16):
                write_row(
                    [
                        kind,
                        implementation,
                        f"{time_per_text(model.eval(), args):.2f}",
                        *step_cells(model.train(), args),
                    ]
                )


if __name__ == "__main__":
    main()
