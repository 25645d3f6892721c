"""Callbacks: a progress bar with loss and accuracy, and a checkpoint on SIGTERM."""

import signal
from typing import Any

import torch
from accelerate import Accelerator
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging


logger = logging.get_logger(__name__)


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
    On SIGTERM, saves a checkpoint after the current step and ends training.

    All processes stop at the same step, even if the signal reaches only one of them.

    Args:
        accelerator (`Accelerator`):
            Accelerator of the trainer.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.was_terminated = False
        self._was_signalled = False
        self._old_handler: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.was_terminated = self._was_signalled = False
        try:
            self._old_handler = signal.signal(signal.SIGTERM, self._notice)
        except ValueError:  # not in the main thread, where signals cannot be caught
            self._old_handler = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._any_process_was_signalled():
            self.was_terminated = True
            control.should_save = True
            control.should_training_stop = True
            logger.warning(
                f"Received SIGTERM: saving a checkpoint at step {state.global_step} and stopping. Resume with `auto`."
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._old_handler is not None:
            signal.signal(signal.SIGTERM, self._old_handler)

    def _notice(self, *_unused: Any) -> None:
        self._was_signalled = True

    def _any_process_was_signalled(self) -> bool:
        if self.accelerator.num_processes == 1:
            return self._was_signalled
        flag = torch.tensor(float(self._was_signalled), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag) > 0)


__all__ = ["ContrastiveProgressCallback", "TerminationCallback"]
