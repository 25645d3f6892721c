"""Rows of all processes on each of them, with gradients that find their way back."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        ctx.sizes = sizes
        padded = F.pad(rows, (0, 0, 0, max(sizes) - len(rows))).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        # Every process has a loss of its own that depends on these rows: the gradient is that of their sum.
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.split(list(ctx.sizes))[dist.get_rank()], None


def gather_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """
    Concatenates the rows of all processes.

    Args:
        rows (`torch.Tensor` of shape `(num_rows, dim)`):
            The rows of this process.
        sizes (`Sequence[int]`):
            Number of rows of each process, which every process knows. One number: nothing is gathered.

    Returns:
        `torch.Tensor` of shape `(sum(sizes), dim)`: All rows, in the order of the processes.
    """
    return _GatherRows.apply(rows, tuple(sizes)) if len(sizes) > 1 else rows


__all__ = ["gather_rows"]
