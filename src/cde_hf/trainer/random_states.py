"""Random states of a forward pass, so that another pass draws the same dropout."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states


class RandomState:
    """
    The random state of this moment, on the CPU and on the devices of some tensors.

    Args:
        tensors (`torch.Tensor`):
            Inputs of the pass that follows.
    """

    def __init__(self, *tensors: Tensor):
        self._cpu_state = torch.get_rng_state()
        self._devices, self._device_states = get_device_states(*tensors)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Goes back to this state, and afterwards to where one was."""
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._cpu_state)
            set_device_states(self._devices, self._device_states)
            yield


@contextmanager
def seeded(seed: int, *tensors: Tensor) -> Iterator[None]:
    """Draws from a seed, on the CPU and the devices of some tensors, and afterwards goes on as before."""
    devices, _ = get_device_states(*tensors)
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


__all__ = ["RandomState", "seeded"]
