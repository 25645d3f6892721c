"""
The trainer: contextual batches, filtered InfoNCE, two-stage gradient caching, on one process or many.

It overrides a private method of `Trainer`, checked against transformers 5.22: `_get_grad_norm` is called when the
gradients are complete, so the norms of both stages are measured here. Stopping, resuming and saving are in
[`ResumableTrainer`].
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    TrainerCallback,
)
from transformers.utils import logging

from ..batching import BatchPlan, ClusteredBatchSampler, FalseNegativeFilter, prepare_batch_plan
from ..data import Prompts, RetrievalSet, check_pairs
from ..files import write_text
from ..modeling.backbones import longest_text
from ..processes import process_state
from .arguments import ContextualTrainingArguments
from .callbacks import ContrastiveProgressCallback, TerminationCallback
from .collator import ContextDraw, ContrastiveCollator
from .evaluation import add_means, make_embedder, score_retrieval_sets
from .gradient_cache import GradientCache
from .losses import InfoNCEOutput, filtered_info_nce
from .models import find_prompts, load_model
from .resumable_trainer import ResumableTrainer
from .step import Encoder, MiniBatchSize, Step, Texts, embed_plainly, gather_rows, is_contextual, touch_parameters
from .step_metrics import StepMetrics


logger = logging.get_logger(__name__)


class EpochDataLoader(DataLoader):
    """Data loader that passes the epoch on to its batch sampler."""

    batch_sampler: ClusteredBatchSampler

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)


class ContextualContrastiveTrainer(ResumableTrainer):
    """
    Trains a [`CDEModel`], or a plain encoder as a biencoder, on batches of similar pairs.

    Args:
        model (`PreTrainedModel`, `str` or `Path`):
            A [`CDEModel`], or an encoder loaded by `AutoModel`, which gets mean pooling, or a PEFT model around
            either. Or the folder or Hub name of a CDE checkpoint, or of an encoder to build a contextual model around.
        args (`ContextualTrainingArguments`, *optional*):
            Arguments of the run. By default all have their defaults, and `output_dir` is `trainer_output`.
        train_dataset (`datasets.Dataset`):
            Pairs: `query`, `document`, optional `negatives` and `domain`.
        batch_plan (`BatchPlan`, `str` or `Path`, *optional*):
            The batch plan of the data set, or its folder. By default it is made in `output_dir/plan` with the defaults
            of [`prepare_batch_plan`].
        processing_class (`PreTrainedTokenizerBase`, *optional*):
            The tokenizer. Defaults to the tokenizer of the checkpoint or encoder, if `model` is a folder or a name.
        eval_dataset (`Sequence[RetrievalSet]`, *optional*):
            Retrieval sets to evaluate on while training: each with its own context, with the context of the next set,
            and without a context.
        prompts (`Prompts`, *optional*):
            Texts to put before queries and documents. Defaults to the prompts of the checkpoint or encoder, if `model`
            is a folder or a name, and to the paper's otherwise.
        callbacks (`list[TrainerCallback]`, *optional*):
            Additional callbacks.
        optimizers (`tuple`, *optional*):
            A custom optimizer and scheduler.
    """

    args: ContextualTrainingArguments
    eval_dataset: list[RetrievalSet] | None
    model: PreTrainedModel
    processing_class: PreTrainedTokenizerBase

    # The loss is the mean over a batch, so accumulated losses are averaged.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        args: ContextualTrainingArguments | None = None,
        train_dataset: Dataset | None = None,
        batch_plan: BatchPlan | str | Path | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        eval_dataset: Sequence[RetrievalSet] | None = None,
        prompts: Prompts | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
    ):
        process_state()
        if train_dataset is None:
            raise ValueError("There is nothing to train on: give the trainer pairs as `train_dataset`.")
        check_pairs(train_dataset)
        args = args or ContextualTrainingArguments()
        if isinstance(model, (str, Path)):
            prompts = prompts or find_prompts(model)
            model, tokenizer = load_model(model, seed=args.seed)
            processing_class = processing_class or tokenizer
        elif processing_class is None:
            raise ValueError(
                f"The model is a {type(model).__name__} without a tokenizer. Give the tokenizer as "
                "`processing_class`, or give the model's folder or name as `model`."
            )
        if batch_plan is None:
            batch_plan = prepare_batch_plan(train_dataset, Path(args.output_dir) / "plan")
        elif not isinstance(batch_plan, BatchPlan):
            batch_plan = BatchPlan.load(batch_plan)
        batch_plan.check_dataset(train_dataset)
        if "negatives" in train_dataset.column_names and not batch_plan.manifest["has_negatives"]:
            raise ValueError(
                f"The data set has hard negatives, but the batch plan `{batch_plan.folder}` was made without. Prepare "
                "the plan again, or remove the column `negatives`."
            )
        self.batch_plan = batch_plan
        self.prompts = prompts or Prompts()
        super().__init__(
            model,
            args,
            train_dataset=train_dataset,
            eval_dataset=list(eval_dataset) if eval_dataset is not None else None,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        model = self._bare_model()
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):  # otherwise the parent class does, and warns
            if getattr(processing_class, name) is not None:
                setattr(model.config, name, getattr(processing_class, name))
        self.is_contextual = is_contextual(model)
        backbone = model.second_stage_model.backbone if is_contextual(model) else model
        self.max_length = min(args.max_length, longest_text(backbone))
        if args.disable_dropout:
            _disable_dropout(model)
        self.data_collator = self._make_collator()
        self._metrics = StepMetrics(self.accelerator)
        self._termination = TerminationCallback(self.accelerator)
        self.add_callback(self._termination)
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(ContrastiveProgressCallback)

    # Set-up

    def _make_collator(self) -> ContrastiveCollator:
        args, plan = self.args, self.batch_plan
        context_draw = None
        if self.is_contextual:
            config = self._bare_model().config
            context_draw = ContextDraw(plan, config.context_size, source=args.context_source, seed=self._data_seed)
            num_choices = self._num_sharing * args.per_device_train_batch_size
            if args.context_source == "batch" and num_choices < config.context_size and not config.has_null_embedding:
                raise ValueError(
                    f"A batch has {num_choices} documents for a context of {config.context_size}, and the model has "
                    "no null embedding to fill the rest. Use a larger batch or `context_source='random'`."
                )
        return ContrastiveCollator(
            self.train_dataset,
            self.processing_class,
            FalseNegativeFilter(plan, args.filter_margin, args.filter_relative_margin),
            context_draw=context_draw,
            prompts=self.prompts,
            max_length=self.max_length,
            context_max_length=min(args.context_max_length or self.max_length, self.max_length),
            filters=args.filter_false_negatives,
            in_batch_negatives=args.in_batch_negatives,
            num_processes=self._num_sharing,
            process_index=self.accelerator.process_index if self._num_sharing > 1 else 0,
        )

    @property
    def _num_sharing(self) -> int:
        """Number of processes that share a batch."""
        return self.accelerator.num_processes if self.args.gather_across_devices else 1

    def get_train_dataloader(self) -> DataLoader:
        """Loads the batches of this process. A batch that processes share has the rows of all of them."""
        args = self.args
        is_shared = self._num_sharing > 1
        sampler = ClusteredBatchSampler(
            self.batch_plan,
            args.per_device_train_batch_size * self._num_sharing,
            grouping=args.batch_grouping,
            cluster_order=args.cluster_order,
            seed=self._data_seed,
            num_processes=1 if is_shared else self.accelerator.num_processes,
            process_index=None if is_shared else self.accelerator.process_index,
        )
        return EpochDataLoader(
            range(len(self.batch_plan)),  # type: ignore[arg-type]  # a sequence is enough
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and self.accelerator.device.type == "cuda",
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )

    def create_optimizer(self, model: PreTrainedModel | None = None) -> torch.optim.Optimizer:
        """Creates the optimizer, with the learning rates of `learning_rate_mapping`."""
        mapping: Any = self.args.learning_rate_mapping  # JSON is parsed by now
        if not mapping or self.optimizer is not None:
            return super().create_optimizer(model)
        model = self.model if model is None else model
        decayed = set(self.get_decay_parameter_names(model))
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        rates = dict.fromkeys(parameters, self.args.learning_rate)
        for pattern, rate in mapping.items():  # a later pattern overrides an earlier one
            matches = [name for name in parameters if re.search(pattern, name)]
            if not matches:
                raise ValueError(
                    f"`learning_rate_mapping` has the pattern `{pattern}`, which matches no trainable parameter. "
                    f"Correct the pattern. Names look like `{next(iter(parameters))}`."
                )
            rates.update(dict.fromkeys(matches, rate))
        groups: dict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
        for name, parameter in parameters.items():
            groups[rates[name], name in decayed].append(parameter)
        optimizer_class, optimizer_kwargs = self.get_optimizer_cls_and_kwargs(self.args, model)
        self.optimizer = optimizer_class(
            [
                {"params": group, "lr": rate, "weight_decay": self.args.weight_decay if is_decayed else 0.0}
                for (rate, is_decayed), group in groups.items()
            ],
            **optimizer_kwargs,
        )
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Creates the learning-rate schedule. Warns if the run is not longer than its warm-up."""
        num_warmup_steps = self.args.get_warmup_steps(num_training_steps)
        has_warmup = self.lr_scheduler is None and num_warmup_steps > 0 and self.args.lr_scheduler_type != "constant"
        if has_warmup and num_warmup_steps >= num_training_steps:
            logger.warning(
                f"The run has {num_training_steps} steps, but its warm-up (`warmup_steps`) takes {num_warmup_steps}: "
                f"the learning rate never reaches {self.args.learning_rate}, and the model learns little or nothing. "
                "Train longer, or lower `warmup_steps`."
            )
        return super().create_scheduler(num_training_steps, optimizer)

    # A step

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, InfoNCEOutput]:
        """Computes the loss of a batch. Also returns the [`InfoNCEOutput`] if `return_outputs`."""
        is_sharded = self.accelerator.distributed_type == DistributedType.FSDP
        encoder = Encoder(model, self._bare_model())
        step = self._make_step(inputs)
        loss_function = partial(self._loss_of_embeddings, inputs=inputs)
        if self.args.caches_gradients:
            size = MiniBatchSize(self.args.mini_batch_size, self.args.mini_batch_num_tokens)
            context_size = self.args.context_mini_batch_size
            cache = GradientCache(
                encoder,
                mini_batch_size=size,
                context_mini_batch_size=size if context_size is None else MiniBatchSize(context_size),
                no_sync=partial(self.accelerator.no_sync, model),
                touch_all=not is_sharded,
            )
            output = cache.compute_loss(step, loss_function)
        else:
            output = loss_function(embed_plainly(encoder, step))
        self._check_loss(output.loss, inputs)
        self._metrics.add_step(output, inputs)
        loss = output.loss
        if not self.args.caches_gradients and not is_sharded:
            loss = loss + touch_parameters(model)
        return (loss, output) if return_outputs else loss

    def _make_step(self, inputs: Mapping[str, Any]) -> Step:
        texts = Texts(inputs["input_ids"], inputs["attention_mask"], inputs["lengths"])
        if not self.is_contextual:
            return Step(texts, inputs["num_queries"])
        documents = Texts(inputs["context_input_ids"], inputs["context_attention_mask"], inputs["context_lengths"])
        num_parts = self._num_sharing if len(documents) % self._num_sharing == 0 else 1
        return Step(
            texts,
            inputs["num_queries"],
            documents,
            num_parts=num_parts,
            process_index=self.accelerator.process_index if num_parts > 1 else 0,
            block_seed=inputs["seed"] if self._num_sharing > 1 else None,
        )

    def _loss_of_embeddings(self, embeddings: Tensor, inputs: Mapping[str, Any]) -> InfoNCEOutput:
        num_queries, args = inputs["num_queries"], self.args
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        queries, documents, negatives = embeddings.split([num_queries, num_queries, len(embeddings) - 2 * num_queries])
        start = 0
        if self._num_sharing > 1:
            start = self.accelerator.process_index * num_queries
            documents = gather_rows(documents, (num_queries,) * self._num_sharing)
            if sum(inputs["negative_counts"]) > 0:
                negatives = gather_rows(negatives, inputs["negative_counts"])
        return filtered_info_nce(
            queries,
            torch.cat([documents, negatives]),
            logit_scale=1 / args.temperature,
            left_out=inputs.get("left_out"),
            positives=torch.arange(start, start + num_queries, device=queries.device),
            matryoshka_dims=args.matryoshka_dims,
        )

    def _check_loss(self, loss: Tensor, inputs: Mapping[str, Any]) -> None:
        if torch.isfinite(loss):
            return
        rows = inputs["rows"]
        domain = self.batch_plan.domains[self.batch_plan.domain_ids[rows[0]]]
        step = self.state.global_step + 1
        path = Path(self.args.output_dir) / f"bad_batch_step_{step}_process_{self.accelerator.process_index}.json"
        write_text(path, json.dumps({"step": step, "domain": domain, "rows": rows}))
        raise ValueError(
            f"The loss is {loss.item()} at step {step}, in a batch of {len(rows)} pairs of domain `{domain}` that "
            f"starts with row {rows[0]}. Look at the rows in `{path}`, lower the learning rate, or train in a higher "
            "precision."
        )

    # Metrics

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | float | None = None) -> Tensor | float | None:
        total_norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # The gradients are already clipped: undo the scaling for the norm of each stage.
        factor = 1.0
        if grad_norm is not None and self.args.max_grad_norm > 0:
            factor = max(1.0, float(total_norm) / self.args.max_grad_norm)
        self._metrics.add_gradients(model, factor)
        return total_norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the metrics since the last log line, averaged over all processes, and the tokens per second."""
        if "loss" in logs and self._metrics:
            logs = {**logs, **self._metrics.pop_means()}
        super().log(logs, start_time)

    def evaluate(  # type: ignore[override]  # on retrieval sets
        self,
        eval_dataset: Sequence[RetrievalSet] | None = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """
        Computes NDCG@10 on retrieval sets. The processes divide the sets among them.

        Args:
            eval_dataset (`Sequence[RetrievalSet]`, *optional*):
                The sets. Defaults to the `eval_dataset` of the trainer.
            metric_key_prefix (`str`, *optional*, defaults to `"eval"`):
                Prefix of the metrics' names.

        Returns:
            `dict[str, float]`: Scores of each set and their means, with own, foreign and no context.
        """
        retrieval_sets = self.eval_dataset if eval_dataset is None else list(eval_dataset)
        if not retrieval_sets:
            raise ValueError("There is nothing to evaluate on: give the trainer retrieval sets as `eval_dataset`.")
        model = self._bare_model()
        embedder = make_embedder(
            model,
            self.processing_class,
            prompts=self.prompts,
            max_length=self.max_length,
            batch_size=self.args.per_device_eval_batch_size,
        )
        was_training = model.training
        model.eval()
        try:
            scores = score_retrieval_sets(
                embedder,
                retrieval_sets,
                context_size=model.config.context_size if self.is_contextual else 1,
                seed=self._data_seed,
                process_index=self.accelerator.process_index,
                num_processes=self.accelerator.num_processes,
            )
        finally:
            model.train(was_training)
        scores = dict(sorted(gather_object(list(scores.items()))))
        metrics = {f"{metric_key_prefix}_{name}": score for name, score in add_means(scores).items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def _disable_dropout(model: nn.Module) -> None:
    """Switches off the dropout of the backbones. Contexts and adapters keep theirs."""
    for module_name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and "lora_" not in module_name:
            module.p = 0.0
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


__all__ = ["ContextualContrastiveTrainer"]
