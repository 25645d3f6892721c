"""The processes that work together, on GPUs or on the CPU."""

import os
from collections.abc import Mapping
from datetime import timedelta

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env


# Variables by which launchers tell a process how many of them there are.
_NUM_PROCESSES_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def process_state() -> PartialState:
    """
    State of this process among those that were launched.

    The others wait while the main process clusters, which may take hours: longer than the usual time limit.
    """
    if PartialState._shared_state == {}:
        # Not told that it is on the CPU, accelerate takes each process for the only one.
        is_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        state = PartialState(cpu=is_cpu, timeout=timedelta(days=30))
    else:
        state = PartialState()
    check_processes(state.num_processes, os.environ)
    return state


def check_processes(num_processes: int, environment: Mapping[str, str]) -> None:
    """
    Refuses to go on when several processes were launched that do not know of each other.

    Args:
        num_processes (`int`):
            What accelerate reports.
        environment (`Mapping[str, str]`):
            The environment variables.
    """
    for name in _NUM_PROCESSES_VARIABLES:
        num_launched = int(environment.get(name) or 1)
        if num_launched > 1 and num_processes == 1:
            raise RuntimeError(
                f"{num_launched} processes were launched (`{name}`), but accelerate reports one: each would do all of "
                "the work by itself. Launch with `accelerate launch` or `torchrun`."
            )


__all__ = ["check_processes", "process_state"]
