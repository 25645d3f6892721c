"""Refuses to train when several processes were launched that do not know of each other."""

from collections.abc import Mapping


# Variables by which launchers tell a process how many of them there are.
_NUM_PROCESSES_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def check_processes(num_processes: int, environment: Mapping[str, str]) -> None:
    """
    Compares the number of processes that were launched with what accelerate reports.

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
                f"{num_launched} processes were launched (`{name}`), but accelerate reports one: each would train a "
                "model of its own. Launch with `accelerate launch` or `torchrun`."
            )


__all__ = ["check_processes"]
