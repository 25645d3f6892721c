"""The processes that prepare a plan together."""

from datetime import timedelta

from accelerate import PartialState


def process_state() -> PartialState:
    """
    State of this process among those that accelerate launched.

    The others wait while the main process clusters, which may take hours: longer than the usual time limit.
    """
    return PartialState(timeout=timedelta(days=30)) if PartialState._shared_state == {} else PartialState()


__all__ = ["process_state"]
