"""Best times of functions that take turns, and a table of them."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import torch


def add_timing_arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    """The arguments that every benchmark of times has."""
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"time for the rounds of one row (default: {seconds})"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of PyTorch. On one, the time is that of the processor, which other jobs on the machine disturb "
        "little; on more, that of the clock (default: 1)",
    )


def best_times(functions: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Best seconds of each function over rounds in which they take turns, after one to warm up; two at the least."""
    # Of the whole process: tokenizers and autograd may work on threads of their own.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for function in functions.values():
        function()
    times = dict.fromkeys(functions, float("inf"))
    end, num_rounds = clock() + seconds, 0
    while num_rounds < 2 or clock() < end:
        for name, function in functions.items():
            start = clock()
            function()
            times[name] = min(times[name], clock() - start)
        num_rounds += 1
    return times


def write_row(cells: Sequence[object]) -> None:
    """Writes one row of a Markdown table to the standard output, at once."""
    sys.stdout.write(f"| {' | '.join(str(cell) for cell in cells)} |\n")
    sys.stdout.flush()


def write_header(names: Sequence[str]) -> None:
    """Writes the head of a Markdown table."""
    write_row(names)
    sys.stdout.write("|---" * len(names) + "|\n")
