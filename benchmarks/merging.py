"""
Compares two implementations of prefix attention on the CPU: copying the context's keys and values, and merging.

It times forward and backward pass of one layer at the paper's size (12 heads of 64). On average, half of each text is
padding. A ratio above one means that merging is faster. The last column shows which one the package uses.
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import add_timing_arguments, best_times, write_header, write_row
from torch import Tensor

from cde_hf.modeling.context_attention import is_merging_faster, merged_attention


NUM_HEADS, HEAD_DIM = 12, 64


def copied_attention(
    query: Tensor, key: Tensor, value: Tensor, context_key: Tensor, context_value: Tensor, attention_mask: Tensor
) -> Tensor:
    key = torch.cat([context_key.expand(len(key), -1, -1, -1), key], dim=2)
    value = torch.cat([context_value.expand(len(value), -1, -1, -1), value], dim=2)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask).transpose(1, 2).contiguous()


def random_inputs(batch_size: int, length: int, num_block_tokens: int) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values of the texts, keys and values of the block, and the mask."""
    shapes = [(batch_size, length, NUM_HEADS, HEAD_DIM)] * 3 + [(1, num_block_tokens, NUM_HEADS, HEAD_DIM)] * 2
    tensors = [torch.randn(shape).transpose(1, 2).requires_grad_() for shape in shapes]
    lengths = torch.linspace(1, length, batch_size).round()
    visible = F.pad(torch.arange(length) < lengths.unsqueeze(1), (num_block_tokens, 0), value=True)
    return tensors, visible[:, None, None, :].expand(-1, 1, length, -1)


def pass_both_ways(attend: Callable[..., Tensor], tensors: list[Tensor], mask: Tensor) -> Callable[[], object]:
    def run() -> object:
        output = attend(*tensors, mask)
        return torch.autograd.grad(output, tensors, output.detach())

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16, 64], help="texts at once")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 128], help="tokens of a text")
    parser.add_argument("--context-sizes", type=int, nargs="+", default=[64, 512], help="context documents")
    add_timing_arguments(parser, seconds=10)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    write_header(["batch", "tokens", "context", "copying ms", "merging ms", "copying / merging", "merges"])
    for batch_size in args.batch_sizes:
        for length in args.lengths:
            for context_size in args.context_sizes:
                tensors, mask = random_inputs(batch_size, length, context_size + 8)
                functions = {
                    "copying": pass_both_ways(copied_attention, tensors, mask),
                    "merging": pass_both_ways(merged_attention, tensors, mask),
                }
                times = best_times(functions, args.seconds)
                write_row(
                    [
                        batch_size,
                        length,
                        context_size,
                        *(f"{1000 * seconds:.1f}" for seconds in times.values()),
                        f"{times['copying'] / times['merging']:.2f}x",
                        "yes" if is_merging_faster(tensors[0], tensors[3]) else "no",
                    ]
                )


if __name__ == "__main__":
    main()
