"""
The processes that work together, on GPUs or on the CPU.

For `accelerate launch --cpu --num_processes N` accelerate 1.15 starts a single process, unless it is given a host file
of `mpirun`, and tells it nothing of the number asked for. [`relaunch_on_cpus`] then starts the process anew under
torch's launcher. To be removed when accelerate starts them itself.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import timedelta

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env


# Variables by which launchers tell a process how many of them there are.
_NUM_PROCESSES_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def relaunch_on_cpus() -> None:
    """Replaces this process by the launcher of as many as `accelerate launch --cpu` was asked for."""
    process = psutil.Process()
    parent = process.parent()
    if parent is None:  # the first process of a container, which nothing launched
        return
    command = _torch_launch_command(parent.cmdline(), process.cmdline(), os.environ)
    if command is not None:
        os.execv(sys.executable, command)


def _torch_launch_command(
    launcher: list[str], own_command: list[str], environment: Mapping[str, str]
) -> list[str] | None:
    """Command of torch's launcher, or `None` if the process was started in any other way."""
    # Set by accelerate for several processes, whereas those of torch's launcher also have a rank.
    if "ACCELERATE_USE_CPU" not in environment or "MASTER_PORT" not in environment or "RANK" in environment:
        return None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("num_processes", "num_machines", "machine_rank"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", type=int)
    arguments, _ = parser.parse_known_args(launcher)
    num_machines = arguments.num_machines or 1
    if arguments.num_processes is None or arguments.num_processes < 2:
        raise RuntimeError(
            "`accelerate launch` was asked for several processes on the CPU in a way that cannot be made out. Give "
            "`--num_processes` on its command line, or use `torchrun`."
        )
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc_per_node={arguments.num_processes // num_machines}",
        f"--nnodes={num_machines}",
        f"--node_rank={arguments.machine_rank or 0}",
        f"--master_addr={environment['MASTER_ADDR']}",
        f"--master_port={environment['MASTER_PORT']}",
        *own_command[1:],
    ]


def process_state() -> PartialState:
    """
    State of this process among those that were launched.

    One may have to wait for another for hours, as while the main process clusters: longer than the usual time limit.
    """
    if PartialState._shared_state == {}:
        if not torch.accelerator.is_available():
            # Not told that it is on the CPU, accelerate takes each process for the only one. The variable tells it
            # once more when training arguments ask anew.
            os.environ["ACCELERATE_USE_CPU"] = "true"
        state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(days=30))
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
                "the work by itself. Launch with `accelerate launch` or `torchrun`, on the CPU with `use_cpu=True`."
            )


__all__ = ["check_processes", "process_state", "relaunch_on_cpus"]
