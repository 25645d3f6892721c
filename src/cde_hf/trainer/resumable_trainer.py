"""
A trainer that stops at any step, resumes bit-identically, and saves and publishes models that load anywhere.

It overrides these private methods of `Trainer`, checked against transformers 5.22:

- `_run_epoch`: a run that resumes from its last step would otherwise take one more step.
- `_load_from_checkpoint` and `_load_best_model`: encoders that are saved under other parameter names would otherwise
  not be loaded.
- `_evaluate`: the parent class does not compare the score of `eval_on_start` with later ones.
- `_save_checkpoint`: the manifest is written last, and older checkpoints are removed only after that.
- `_save`: the model is saved with its code, tokenizer and prompts, so that it loads anywhere.
- `_push_from_checkpoint`: the parent class would upload the texts of the batch plan.

It also calls `_get_output_dir` and `_load_rng_state`.
"""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, TrainOutput, rotate_checkpoints
from transformers.utils import logging

from ..batching import BatchPlan
from ..data import Prompts
from ..files import write_text
from ..hub import push_to_hub
from ..saving import save_biencoder, save_checkpoint
from .arguments import ContextualTrainingArguments
from .callbacks import TerminationCallback
from .checkpoints import find_last_checkpoint, locked_output, read_manifest, write_manifest


logger = logging.get_logger(__name__)


class ResumableTrainer(Trainer):
    """The part of [`ContextualContrastiveTrainer`] that stops, resumes, saves and publishes."""

    args: ContextualTrainingArguments
    batch_plan: BatchPlan
    is_contextual: bool
    max_length: int
    processing_class: PreTrainedTokenizerBase
    prompts: Prompts
    _termination: TerminationCallback

    def _bare_model(self) -> PreTrainedModel:
        """The model without the wrappers of DDP, `torch.compile` and PEFT."""
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return model.get_base_model() if hasattr(model, "peft_config") else model

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """
        Trains from the start, or resumes from a checkpoint.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint. `"auto"` or `True` resumes from the last complete checkpoint in `output_dir`, and trains
                from the start if there is none.
            *args:
                Other arguments of `Trainer.train`.
            **kwargs:
                Other arguments of `Trainer.train`.

        Returns:
            `TrainOutput`: The output of `Trainer.train`.
        """
        if resume_from_checkpoint in ("auto", True):
            resume_from_checkpoint = str(find_last_checkpoint(self.args.output_dir) or "")
            if not resume_from_checkpoint:
                logger.info(f"No complete checkpoint in `{self.args.output_dir}`: training from the start.")
        if resume_from_checkpoint:
            resume_from_checkpoint = str(resume_from_checkpoint)
            self._check_run(resume_from_checkpoint)
        start = self._copy_start()
        with locked_output(self.args.output_dir), self._termination.listening():
            output = super().train(resume_from_checkpoint or None, *args, **kwargs)
        if start and self.ends_with_start:
            self._bare_model().load_state_dict(start, strict=False)
        return output

    @property
    def ends_with_start(self) -> bool:
        """Whether no evaluated state was better than the start, to which the training then returns."""
        return self.args.load_best_model_at_end and self.state.best_global_step == 0

    def _copy_start(self) -> dict[str, Tensor]:
        """Copies the trainable weights if training may end with the weights that it starts from."""
        if not (self.args.load_best_model_at_end and self.args.eval_on_start):
            return {}
        if self.is_fsdp_enabled:
            raise ValueError(
                "Under FSDP the weights at the start are not kept, so `load_best_model_at_end` cannot return to them. "
                "Set `eval_on_start` or `load_best_model_at_end` to false."
            )
        parameters = self._bare_model().named_parameters()
        return {name: each.detach().cpu().clone() for name, each in parameters if each.requires_grad}

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        is_on_start = skip_scheduler
        if is_on_start and self.state.global_step > 0:  # resumed: the start was scored
            return {}
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        if is_on_start and self.args.load_best_model_at_end:
            self._determine_best_metric(metrics, trial)
        return metrics

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
            return
        # Resumed from the last step: the parent class would take one more.
        self._load_rng_state(kwargs["resume_from_checkpoint"])
        self.control.should_training_stop = True

    @property
    def was_terminated(self) -> bool:
        """Whether SIGTERM or Ctrl-C ended the last training."""
        return self._termination.was_terminated

    def _run_identity(self) -> dict[str, Any]:
        """Settings that must not change when a run resumes, because they determine its batches."""
        return {
            "data_fingerprint": self.batch_plan.manifest["data_fingerprint"],
            "plan_fingerprint": self.batch_plan.fingerprint,
            "num_processes": self.accelerator.num_processes,
            "batch_size": self.args.per_device_train_batch_size,
            "gather_across_devices": self.args.gather_across_devices,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
            "batch_grouping": self.args.batch_grouping,
            "cluster_order": self.args.cluster_order,
            "seed": self._data_seed,
        }

    def _check_run(self, checkpoint: str) -> None:
        for name, found in read_manifest(checkpoint).items():
            wanted = self._run_identity()[name]
            if found != wanted:
                raise ValueError(
                    f"`{checkpoint}` was saved by a run with `{name}` {found}, but this run has {wanted}, which "
                    "changes its batches. Resume with the same data, plan and settings, or train from the start."
                )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        bare_model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if self.is_fsdp_enabled or hasattr(bare_model, "peft_config"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        # Some encoders are saved under other parameter names, which the parent class would skip.
        loaded = type(bare_model).from_pretrained(resume_from_checkpoint, dtype=bare_model.dtype)
        bare_model.load_state_dict(loaded.state_dict())

    def _load_best_model(self) -> None:
        checkpoint: Any = self.state.best_model_checkpoint
        logger.info(f"Loading the best checkpoint, `{checkpoint}`.")
        self._load_from_checkpoint(checkpoint)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Saves a checkpoint, marks it as complete, and only then removes older ones."""
        output_dir = self._get_output_dir(trial=trial)
        folder = Path(output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save and folder.exists():  # incomplete, or of an earlier run
            shutil.rmtree(folder)
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            write_manifest(folder, self._run_identity())
            rotate_checkpoints(output_dir, limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """
        Saves the model for `AutoModel` and `SentenceTransformer`. PEFT adapters are merged into it.

        Args:
            output_dir (`str`, *optional*):
                Folder to write. Defaults to `output_dir` of the arguments.
        """
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if hasattr(model, "peft_config") and not _internal_call:
            if self.args.should_save:
                self._save_bare(copy.deepcopy(model).merge_and_unload(), output_dir or self.args.output_dir)
        else:
            super().save_model(output_dir, _internal_call)
        self.accelerator.wait_for_everyone()  # no process may add files before the model is saved

    def _save_bare(self, model: PreTrainedModel, folder: str | Path) -> None:
        save: Callable[..., None] = save_checkpoint if self.is_contextual else save_biencoder
        save(model, self.processing_class, folder, prompts=self.prompts, max_length=self.max_length)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Saves the model with its code, its tokenizer and the training arguments."""
        folder = Path(output_dir or self.args.output_dir)
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if hasattr(model, "peft_config"):
            model.save_pretrained(folder, state_dict=state_dict)
            self.processing_class.save_pretrained(folder)
        else:
            if state_dict is not None:  # gathered from the processes, under FSDP
                model = type(model)(model.config)
                model.load_state_dict(state_dict)
            self._save_bare(model, folder)
        write_text(folder / "training_args.json", self.args.to_json_string())

    def push_to_hub(  # type: ignore[override]  # returns the address, and waits for the upload
        self,
        commit_message: str = "End of training",
        *,
        token: str | None = None,
        revision: str | None = None,
    ) -> str | None:
        """
        Publishes the model like [`cde_hf.push_to_hub`]: the files of the checkpoint, without any training data.

        Args:
            commit_message (`str`, *optional*, defaults to `"End of training"`):
                Message of the commit.
            token (`str`, *optional*):
                Access token. Defaults to `hub_token` of the arguments, or the token of the login.
            revision (`str`, *optional*):
                Branch to commit to. Defaults to `hub_revision` of the arguments.

        Returns:
            `str` or `None`: Address of the repository on the first process, `None` on the others.
        """
        token = token or self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        self.save_model(_internal_call=not hasattr(model, "peft_config"))  # adapters are published merged
        return self._publish(self.args.output_dir, commit_message, token=token, revision=revision)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # The parent class uploads all of `output_dir`, and with it the texts of the batch plan.
        if self.args.hub_strategy == HubStrategy.END or not (Path(checkpoint_folder) / "modules.json").exists():
            return
        try:
            self._publish(checkpoint_folder, f"Step {self.state.global_step}", token=self.args.hub_token)
        except (OSError, ValueError) as error:
            logger.warning(f"Training continues, but step {self.state.global_step} was not published. {error}")

    def _publish(self, folder: str, commit_message: str, *, revision: str | None = None, **kwargs: Any) -> str | None:
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if not self.is_world_process_zero():
            return None
        revision = revision or self.args.hub_revision
        name: Any = self.hub_model_id  # the parent class has set it, but declares `None`
        return push_to_hub(folder, name, commit_message=commit_message, revision=revision, **kwargs)


__all__ = ["ResumableTrainer"]
