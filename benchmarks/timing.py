"""Measures the best times of functions that take turns, and writes tables."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import torch


def add_timing_arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Adds the arguments that all timing benchmarks share."""
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"time for the rounds of one row (default: {seconds})"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="PyTorch threads. One thread measures processor time, which other jobs on the machine hardly affect. "
        "More threads measure wall-clock time (default: 1)",
    )


def best_times(functions: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """
    Returns the best time of each function in seconds. They take turns: one warm-up round, then at least two rounds.
    """
    # Processor time of all threads, because tokenizers and autograd may use their own.
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
    """Writes one row of a Markdown table to standard output, unbuffered."""
    sys.stdout.write(f"| {' | '.join(str(cell) for cell in cells)} |\n")
    sys.stdout.flush()


def write_header(names: Sequence[str]) -> None:
    """Writes the header of a Markdown table."""
    write_row(names)
    sys.stdout.write("|---" * len(names) + "|\n")
