"""
Time per text of joint attention, prefix attention and the plain biencoder, in one run.

The three run in turn, several times; the best time of each counts. Read the ratios: the times belong to the machine.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch

from cde_hf import CDEConfig, CDEModel


def best_times(functions: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, float]:
    """Best time of each function over `num_rounds` rounds in which they take turns."""
    for function in functions.values():
        function()
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(num_rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def build_models(num_layers: int, context_size: int) -> dict[str, CDEModel]:
    """One model per mode, with the same random weights: NomicBERT at the paper's width."""
    models = {}
    for mode in ("joint", "prefix"):
        stage = {"num_hidden_layers": num_layers}
        config = CDEConfig(
            first_stage_config={"num_hidden_layers": 1},
            second_stage_config=stage,
            context_size=context_size,
            context_attention=mode,
        )
        models[mode] = CDEModel(config).eval()
    models["prefix"].load_state_dict(models["joint"].state_dict())
    return models


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="layers of the second stage (default: 12)")
    parser.add_argument("--context-size", type=int, default=512, help="context documents (default: 512)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 128, 512], help="tokens of a text")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16], help="texts at once")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: 5)")
    args = parser.parse_args()

    torch.manual_seed(0)
    models = build_models(args.layers, args.context_size)
    context = torch.randn(args.context_size, models["joint"].config.context_embedding_size)
    block = models["prefix"].second_stage_model.encode_block(context)
    joint, prefix = models["joint"].second_stage_model, models["prefix"].second_stage_model
    backbone = models["joint"].second_stage_model.backbone

    write = sys.stdout.write
    write(
        f"NomicBERT, {args.layers} layers, {args.context_size} context documents, {torch.get_num_threads()} threads\n"
    )
    write("| batch | tokens | joint ms | prefix ms | biencoder ms | joint / prefix | prefix / biencoder |\n")
    write("|---|---|---|---|---|---|---|\n")
    for batch_size in args.batch_sizes:
        for length in args.lengths:
            input_ids = torch.randint(1000, 30000, (batch_size, length))
            mask = torch.ones_like(input_ids)
            functions = {
                "prefix": lambda ids=input_ids, mask=mask: prefix(ids, mask, context_block=block),
                "biencoder": lambda ids=input_ids, mask=mask: backbone(ids, mask).last_hidden_state.mean(dim=1),
                "joint": lambda ids=input_ids, mask=mask: joint(ids, mask, context),
            }
            times = {name: 1000 * t / batch_size for name, t in best_times(functions, args.rounds).items()}
            write(
                f"| {batch_size} | {length} | {times['joint']:.1f} | {times['prefix']:.1f} | {times['biencoder']:.1f} "
                f"| {times['joint'] / times['prefix']:.1f}x | {times['prefix'] / times['biencoder']:.2f}x |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
