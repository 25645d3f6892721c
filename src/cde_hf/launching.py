"""
Several processes on the CPU by `accelerate launch --cpu --num_processes N`.

accelerate 1.15 starts a single process for that command, unless it is given a host file of `mpirun`, and tells it
nothing of the number asked for. Here the process starts itself anew under torch's launcher. To be removed when
accelerate starts them itself.
"""

import argparse
import os
import sys

import psutil


def relaunch_on_cpus() -> None:
    """Replaces this process by the launcher of as many as `accelerate launch --cpu` was asked for."""
    command = _torch_launch_command(psutil.Process().parent().cmdline(), psutil.Process().cmdline(), os.environ)
    if command is not None:
        os.execv(sys.executable, command)


def _torch_launch_command(
    launcher: list[str], own_command: list[str], environment: dict[str, str] | os._Environ
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


__all__ = ["relaunch_on_cpus"]
