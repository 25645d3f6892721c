"""Metrics of training steps, averaged over steps and processes for the log."""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from .losses import InfoNCEOutput


_STAGES = ("first_stage_model", "second_stage_model")


class StepMetrics:
    """
    Collects the metrics of this process since the last log line.

    Args:
        accelerator (`Accelerator`):
            Accelerator of the trainer.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self._values: dict[str, list[Tensor | float]] = defaultdict(list)
        self._start = time.perf_counter()

    def __bool__(self) -> bool:
        """Whether there was a step since the last log line."""
        return bool(self._values)

    def add_step(self, output: InfoNCEOutput, inputs: Mapping[str, Any]) -> None:
        """Adds the metrics of a batch, from the loss and from the collator."""
        values = {
            "accuracy": output.accuracy,
            "mean_rank": output.mean_rank,
            "hardness": inputs["hardness"],
            "filtered_share": inputs["filtered_share"],
            "num_tokens": sum(inputs["lengths"]),
        }
        for name, value in values.items():
            self._values[name].append(value)

    def add_gradients(self, model: nn.Module, factor: float) -> None:
        """Adds the gradient norm of each stage. `factor` undoes the clipping."""
        for stage in _STAGES:
            gradients = [
                parameter.grad
                for name, parameter in model.named_parameters()
                if stage in name and parameter.grad is not None
            ]
            if gradients:
                norm = nn.utils.get_total_norm(gradients)
                self._values[f"grad_norm_{stage.removesuffix('_model')}"].append(norm * factor)

    def pop_means(self) -> dict[str, float]:
        """Returns the means over all steps and processes, and the total tokens per second, and clears the metrics."""
        names = sorted(self._values)
        values = torch.tensor(
            [[float(sum(self._values[name])), len(self._values[name])] for name in names],
            dtype=torch.float32,
            device=self.accelerator.device,
        )
        sums, counts = self.accelerator.reduce(values).unbind(dim=1)
        means = dict(zip(names, (sums / counts).tolist(), strict=True))
        now = time.perf_counter()
        del means["num_tokens"]
        means["tokens_per_second"] = float(sums[names.index("num_tokens")]) / (now - self._start)
        self._start = now
        self._values.clear()
        return means


__all__ = ["StepMetrics"]
