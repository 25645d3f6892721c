"""Callbacks: a progress bar with loss and accuracy, and a checkpoint on SIGTERM and Ctrl-C."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging


logger = logging.get_logger(__name__)

# One Ctrl-C reaches a process twice: from the terminal, and from its launcher.
_SECONDS_OF_ONE_SIGNAL = 1.0


class ContrastiveProgressCallback(ProgressCallback):
    """Progress bar that shows the latest loss and in-batch accuracy."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and self.training_bar is not None and "accuracy" in (logs or {}):
            shown = {name: f"{logs[name]:.3f}" for name in ("loss", "accuracy") if name in logs}
            self.training_bar.set_postfix(shown)
        else:
            super().on_log(args, state, control, logs=logs, **kwargs)


class TerminationCallback(TrainerCallback):
    """
    On SIGTERM and on Ctrl-C, saves a checkpoint after the current step and ends training.

    All processes stop at the same step, even if the signal reaches only one of them. A second Ctrl-C ends at once.

    Args:
        accelerator (`Accelerator`):
            Accelerator of the trainer.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.was_terminated = False
        self._was_signalled = False
        self._signalled_at = 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catches the signals until the training ends, also by an error."""
        self.was_terminated = self._was_signalled = False
        old_handlers = {}
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                old_handlers[number] = signal.signal(number, self._notice)
        except ValueError:  # not in the main thread, where signals cannot be caught
            pass
        try:
            yield
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._any_process_was_signalled():
            self.was_terminated = True
            control.should_save = True
            control.should_training_stop = True

    def _notice(self, number: int, _frame: Any) -> None:
        if self._was_signalled:
            if number == signal.SIGINT and time.monotonic() - self._signalled_at > _SECONDS_OF_ONE_SIGNAL:
                raise KeyboardInterrupt
            return
        self._was_signalled, self._signalled_at = True, time.monotonic()
        if self.accelerator.is_main_process:
            logger.warning("Saving a checkpoint after this step, and stopping. Another Ctrl-C stops without saving.")

    def _any_process_was_signalled(self) -> bool:
        if self.accelerator.num_processes == 1:
            return self._was_signalled
        flag = torch.tensor(float(self._was_signalled), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag) > 0)


__all__ = ["ContrastiveProgressCallback", "TerminationCallback"]
