"""State of the processes that run together, on GPUs or on the CPU."""

import atexit
import os
import signal
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import cache

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env


# Seconds between two looks at the launcher, and that this process then has to save and to end.
_LOOK_EVERY = 2.0
_SECONDS_TO_END = 300.0

# Variables in which launchers pass the number of processes.
_NUM_PROCESSES_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def process_state() -> PartialState:
    """
    Returns the state of this process among all launched processes.

    The timeout is 30 days, because the other processes may wait for hours while the main process clusters.
    """
    if PartialState._shared_state == {}:
        if not torch.accelerator.is_available():
            # Otherwise accelerate treats each process as the only one. The training arguments read the variable too.
            os.environ["ACCELERATE_USE_CPU"] = "true"
        state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(days=30))
    else:
        state = PartialState()
    check_processes(state.num_processes, os.environ)
    _leave_at_exit()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # `torchrun` and `accelerate launch` start processes with it
        _watch_launcher()
    return state


@cache
def _watch_launcher() -> None:
    """Ends this process if its launcher dies: nobody would end it when it waits for a process that is gone."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(_LOOK_EVERY)
        os.write(2, f"Process {os.getpid()} ends, because the launcher that started it is gone.\n".encode())
        os.kill(os.getpid(), signal.SIGTERM)  # a training saves a checkpoint first
        time.sleep(_SECONDS_TO_END)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="launcher watch").start()


@cache
def _leave_at_exit() -> None:
    """Has the work with the other processes end before the interpreter does."""
    atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_initialized():
        # A gloo thread takes the GIL to free the tensors of the last collective. torch 2.13 aborts the process if the
        # interpreter ends in the meantime.
        time.sleep(0.2)
        torch.distributed.destroy_process_group()


def check_processes(num_processes: int, environment: Mapping[str, str]) -> None:
    """
    Raises an error if several processes were launched but accelerate reports one.

    Args:
        num_processes (`int`):
            Number of processes that accelerate reports.
        environment (`Mapping[str, str]`):
            The environment variables.
    """
    if num_processes > 1:
        return
    # For `--cpu --num_processes N` accelerate 1.15 sets a port but starts one process, without a rank.
    if "ACCELERATE_USE_CPU" in environment and "MASTER_PORT" in environment and "RANK" not in environment:
        raise RuntimeError(
            "`accelerate launch` was asked for several processes on the CPU, but started only one. Use `torchrun "
            "--nproc_per_node N` there."
        )
    for name in _NUM_PROCESSES_VARIABLES:
        num_launched = int(environment.get(name) or 1)
        if num_launched > 1:
            raise RuntimeError(
                f"{num_launched} processes were launched (`{name}`), but accelerate reports one: each would do all of "
                "the work alone. Launch with `accelerate launch` or `torchrun`, on the CPU with `use_cpu=True`."
            )


__all__ = ["check_processes", "process_state"]
