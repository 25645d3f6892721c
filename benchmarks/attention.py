"""
Time per text of joint attention, prefix attention and the plain biencoder, measured in one run.

The models take turns, and the best time of each counts. Compare the ratios, because the times depend on the machine.
The context block of prefix attention is computed once and not timed.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from models import STAGES, build_models
from timing import add_timing_arguments, best_times, write_header, write_row

from cde_hf import CDEModel, Context


COLUMNS = ("joint", "prefix", "biencoder")


def build_functions(
    models: dict[str, CDEModel], contexts: dict[str, Context], batch_size: int, length: int, *, with_joint: bool
) -> dict[str, Callable[[], object]]:
    """The functions to time, as a user would call them."""
    input_ids = torch.randint(1000, 30000, (batch_size, length))
    mask = torch.ones_like(input_ids)
    backbone = models["joint"].second_stage_model.backbone
    functions: dict[str, Callable[[], object]] = {
        name: lambda model=models[name], context=context: model.encode_texts(input_ids, mask, context=context)
        for name, context in contexts.items()
    }
    functions["biencoder"] = lambda: backbone(input_ids, mask).last_hidden_state.mean(dim=1)
    if with_joint:
        vectors = contexts["prefix"].embeddings
        functions["joint"] = lambda: models["joint"].second_stage_model(input_ids, mask, vectors)
    return functions


def measure(functions: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Seconds of each function. Joint attention is much slower than the rest, so fewer rounds suffice."""
    joint = {name: run for name, run in functions.items() if name == "joint"}
    return {
        **best_times({name: run for name, run in functions.items() if name not in joint}, seconds),
        **(best_times(joint, seconds / 4) if joint else {}),
    }


def plot_times(times: dict[int, dict[str, float]], title: str, path: Path) -> None:
    """Plots milliseconds per text against the length of the text."""
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "cde-hf"}  # selectable text and a reproducible file
    lengths = sorted(times)
    figure, axes = plt.subplots(figsize=(6, 4))
    for name, marker in (("joint", "s"), ("prefix", "o"), ("biencoder", "^")):
        if name in times[lengths[0]]:
            axes.plot(lengths, [1000 * times[length][name] for length in lengths], marker=marker, label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens of the text", ylabel="milliseconds per text", title=title)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(STAGES), default="NomicBERT", help="size of the second stage")
    parser.add_argument("--layers", type=int, help="layers of the second stage (default: the model's)")
    parser.add_argument("--context-size", type=int, default=512, help="context documents (default: 512)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 128, 256, 512], help="tokens of a text")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16], help="texts at once")
    parser.add_argument(
        "--max-joint-batch-size", type=int, default=10**6, help="largest batch in joint attention (default: all)"
    )
    parser.add_argument("--plot", type=Path, help="file for a plot of the first batch size's times (SVG or PNG)")
    add_timing_arguments(parser, seconds=25)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    models = build_models(args.model, args.context_size, args.layers)
    vectors = torch.randn(args.context_size, models["joint"].config.hidden_size)
    contexts = {"prefix": models["prefix"].prepare_context(Context(vectors))}
    ratios = (("joint", "prefix"), ("prefix", "biencoder"))
    write_header(
        ["batch", "tokens", *(f"{name} ms" for name in COLUMNS), *(f"{top} / {base}" for top, base in ratios)]
    )
    for batch_size in args.batch_sizes:
        with_joint = batch_size <= args.max_joint_batch_size
        times = {}
        for length in args.lengths:
            functions = build_functions(models, contexts, batch_size, length, with_joint=with_joint)
            seconds = measure(functions, args.seconds)
            times[length] = seconds = {name: value / batch_size for name, value in seconds.items()}
            milliseconds = [f"{1000 * seconds[name]:.1f}" if name in seconds else "" for name in COLUMNS]
            quotients = [f"{seconds[top] / seconds[base]:.2f}x" if top in seconds else "" for top, base in ratios]
            write_row([batch_size, length, *milliseconds, *quotients])
        if args.plot is not None and batch_size == args.batch_sizes[0]:
            title = f"{args.model}, {args.context_size} context documents, batch {batch_size}"
            plot_times(times, title, args.plot)


if __name__ == "__main__":
    main()
