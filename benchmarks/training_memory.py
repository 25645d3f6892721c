"""
Peak memory of a training step by batch size, plain and gradient-cached, each in its own process.

"Above the start" is the memory of the step beyond what the process held before it. With `--pairs`, small batches take
several steps, so that all batch sizes see the same number of pairs. This matters because the allocator's fragmentation
grows with the number of mini-batches, not with the batch size.
"""

import argparse
import multiprocessing
import re
from pathlib import Path

import psutil
import torch
from timing import write_header, write_row
from training_steps import KINDS, add_step_arguments, build_model, make_step, run_step


Peaks = dict[int, tuple[float, float]]


def peak_memory(
    kind: str, batch_size: int, mini_batch_size: int | None, args: argparse.Namespace
) -> tuple[float, float]:
    """Peak memory of some steps in MiB: above what the process held before, and in total."""
    torch.set_num_threads(1)
    model, step = build_model(kind, args), make_step(batch_size, args)
    run_step(model, make_step(2, args), mini_batch_size)  # loads libraries and allocates gradients
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current memory
    before = psutil.Process().memory_info().rss / 2**20
    for _ in range(max(1, args.pairs // batch_size)):
        run_step(model, step, mini_batch_size)
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
    return peak - before, peak


def measure(kind: str, mini_batch_size: int | None, args: argparse.Namespace) -> Peaks:
    """Peaks of one kind of step by batch size, each in its own process."""
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for size in args.batch_sizes:
        if mini_batch_size is not None or size <= args.max_plain_batch_size:
            with context.Pool(1) as pool:
                peaks[size] = pool.apply(peak_memory, (kind, size, mini_batch_size, args))
    return peaks


def write_peaks(step: str, peaks: Peaks, batch_sizes: list[int]) -> None:
    cells = []
    for number in range(2):
        cells += [f"{peaks[size][number]:.0f}" if size in peaks else "" for size in batch_sizes]
        cells.append(f"{peaks[max(peaks)][number] / peaks[min(peaks)][number]:.2f}x")
    write_row([step, *cells])


def plot_memory(peaks: dict[str, Peaks], title: str, path: Path) -> None:
    """Plots the memory above the start against the batch size."""
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "cde-hf"}  # selectable text and a reproducible file
    figure, axes = plt.subplots(figsize=(6, 4))
    colours = {kind: f"C{number}" for number, kind in enumerate(KINDS)}
    for step, by_size in peaks.items():
        kind, way = step.split(", ")
        style = {"linestyle": "-", "marker": "o"} if way == "cached" else {"linestyle": "--", "marker": "s"}
        axes.plot(list(by_size), [peak for peak, _ in by_size.values()], color=colours[kind], label=step, **style)
    sizes = sorted({size for by_size in peaks.values() for size in by_size})
    axes.set(xscale="log", yscale="log", xlabel="pairs in a batch", ylabel="MiB above the start", title=title)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_step_arguments(parser)
    parser.add_argument("--kinds", choices=list(KINDS), nargs="+", default=list(KINDS), help="which models")
    parser.add_argument("--pairs", type=int, default=0, help="minimum number of pairs (default: one step)")
    parser.add_argument("--plot", type=Path, help="file for a plot of the memory above the start (SVG or PNG)")
    args = parser.parse_args()

    columns = [*(f"batch {size}" for size in args.batch_sizes), "largest / smallest"]
    write_header(["step", *columns, *(f"process, {name}" for name in columns)])
    peaks = {}
    for kind in args.kinds:
        for way, mini_batch_size in (("cached", args.mini_batch_size), ("plain", None)):
            by_size = measure(kind, mini_batch_size, args)
            if by_size:  # all batches may be too large without caching
                peaks[f"{kind}, {way}"] = by_size
                write_peaks(f"{kind}, {way}", by_size, args.batch_sizes)
    if args.plot is not None:
        title = f"{args.layers} layers of width {args.width}, mini-batch {args.mini_batch_size}"
        plot_memory(peaks, title, args.plot)


if __name__ == "__main__":
    main()
