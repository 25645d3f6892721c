"""
Speed and accuracy of prefix attention on the CPU in bfloat16, with int8 weights, and compiled.

int8 is PyTorch's dynamic quantization of the linear layers. Each form computes its own context block, which is not
timed. The cosine compares embeddings with the float32 embeddings of the same texts; the table shows the lowest of a
batch. The weights are random, so a trained model may lose more or less.
"""

import argparse
import copy
import warnings

import torch
from models import STAGES, build_models
from timing import add_timing_arguments, best_times, write_header, write_row
from torch import nn

from cde_hf.modeling import Context


def make_form(stage: nn.Module, form: str) -> nn.Module:
    """A copy of the second stage in another form."""
    stage = copy.deepcopy(stage)
    if form == "bfloat16":
        return stage.to(torch.bfloat16)
    if form == "int8":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that quantization moves to another package
            return torch.ao.quantization.quantize_dynamic(stage, {nn.Linear}, dtype=torch.qint8)
    return stage


def encode_block(stage: nn.Module, vectors: torch.Tensor, form: str) -> Context:
    return Context(keys_values=stage.encode_block(vectors.to(torch.bfloat16) if form == "bfloat16" else vectors))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    forms = ["float32", "bfloat16", "int8", "compiled"]
    parser.add_argument("--model", choices=list(STAGES), default="NomicBERT", help="size of the second stage")
    parser.add_argument("--forms", choices=forms, nargs="+", default=forms, help="forms to compare with float32")
    parser.add_argument("--context-size", type=int, default=512, help="context documents (default: 512)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 128], help="tokens of a text")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16], help="texts at once")
    add_timing_arguments(parser, seconds=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    stage = build_models(args.model, args.context_size)["prefix"].second_stage_model
    vectors = torch.randn(args.context_size, stage.config.hidden_size)
    names = ["float32", *(form for form in args.forms if form != "float32")]
    stages = {form: make_form(stage, form) for form in names}
    blocks = {form: encode_block(stages[form], vectors, form) for form in names}
    if "compiled" in stages:
        stages["compiled"] = torch.compile(stages["compiled"])
    write_header(["batch", "tokens", "form", "ms per text", "float32 / form", "lowest cosine"])
    for batch_size in args.batch_sizes:
        for length in args.lengths:
            input_ids = torch.randint(1000, 30000, (batch_size, length))
            functions = {
                form: lambda ids=input_ids, run=stages[form], block=blocks[form]: run(ids, context=block)
                for form in names
            }
            expected = functions["float32"]()
            cosines = {
                form: torch.cosine_similarity(run().float(), expected).min().item() for form, run in functions.items()
            }
            times = best_times(functions, args.seconds)
            for form in names:
                write_row(
                    [
                        batch_size,
                        length,
                        form,
                        f"{1000 * times[form] / batch_size:.1f}",
                        f"{times['float32'] / times[form]:.2f}x",
                        f"{cosines[form]:.4f}",
                    ]
                )


if __name__ == "__main__":
    main()
