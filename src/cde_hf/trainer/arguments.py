"""Arguments of a training run."""

import math
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy

from ..batching.sampler import ClusterOrder, Grouping
from ..data import check_counts, check_positive, check_seed
from .collator import ContextSource


_COUNTS = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "mini_batch_size",
    "context_mini_batch_size",
    "mini_batch_num_tokens",
    "max_length",
    "context_max_length",
)


@dataclass
class ContextualTrainingArguments(TrainingArguments):
    """
    Arguments of the [`ContextualContrastiveTrainer`], in addition to the arguments of `TrainingArguments`.

    They control loss, batches, context, memory and optimizer. Each is described where it is defined and in `--help`.
    The experiments behind the defaults are in `docs/results/README.md`.

    These defaults differ from `TrainingArguments`: `learning_rate` 2e-5, `warmup_steps` 0.1,
    `per_device_train_batch_size` 256, `logging_steps` 10, `save_total_limit` 2, `per_device_eval_batch_size` 32.
    Batches are always full, buffers are not broadcast between processes, and gradient checkpointing is not reentrant.
    """

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "learning_rate_mapping"]  # JSON on the command line

    # Never `None`
    output_dir: str = field(default="trainer_output", metadata={"help": "Folder of the checkpoints and the model."})

    # Defaults that differ
    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate."})
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Steps of linear warm-up. A number below 1 is a share of all steps."}
    )
    per_device_train_batch_size: int = field(default=256, metadata={"help": "Pairs per batch and process."})
    per_device_eval_batch_size: int = field(default=32, metadata={"help": "Texts to embed at once in an evaluation."})
    logging_steps: float = field(default=10, metadata={"help": "Steps between two log lines."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Number of checkpoints to keep."})

    # Loss
    temperature: float = field(
        default=0.02, metadata={"help": "Softmax temperature: cosine similarities are divided by it."}
    )
    in_batch_negatives: bool = field(
        default=True,
        metadata={
            "help": "Whether the documents of the other pairs are negatives too, in addition to hard negatives."
        },
    )
    gather_across_devices: bool = field(
        default=False,
        metadata={"help": "Whether all processes share one batch with its negatives and its context."},
    )
    matryoshka_dims: list[int] | None = field(
        default=None,
        metadata={"help": "Embedding widths of a Matryoshka loss, such as 768 256 64. Default: the full width."},
    )

    # Batches
    batch_grouping: Grouping = field(
        default="cluster",
        metadata={"help": "Where the pairs of a batch come from: one cluster, one domain, or the entire data set."},
    )
    cluster_order: ClusterOrder = field(
        default="tour",
        metadata={"help": "Which clusters share a batch if one does not fill it: nearest neighbours or random ones."},
    )
    filter_false_negatives: bool = field(
        default=True, metadata={"help": "Whether to drop negatives that the surrogate scores as high as the positive."}
    )
    filter_margin: float = field(
        default=0.0, metadata={"help": "A negative is dropped if it scores at least this much above the positive."}
    )
    filter_relative_margin: float | None = field(
        default=None, metadata={"help": "The margin as a share of the positive's score, instead of `filter_margin`."}
    )
    max_length: int = field(default=512, metadata={"help": "Texts are truncated to this number of tokens."})

    # Context
    context_source: ContextSource = field(
        default="cluster",
        metadata={
            "help": "Where context documents come from: the clusters of the batch, mixed with its domain; the batch "
            "itself; its domain; or the entire data set."
        },
    )
    context_max_length: int | None = field(
        default=None,
        metadata={"help": "Context documents are truncated to this number of tokens. Default: `max_length`."},
    )

    # Memory
    mini_batch_size: int | None = field(
        default=None, metadata={"help": "Texts per mini-batch of gradient caching. Default: no caching."}
    )
    context_mini_batch_size: int | None = field(
        default=None,
        metadata={"help": "Context documents per mini-batch of gradient caching. Default: `mini_batch_size`."},
    )
    mini_batch_num_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per mini-batch of gradient caching, padding included, instead of `mini_batch_size`."
        },
    )

    # Optimizer
    disable_dropout: bool = field(
        default=False,
        metadata={"help": "Whether to switch off the dropout of the backbones, which is slow on CPUs."},
    )
    learning_rate_mapping: dict[str, float] | str | None = field(
        default=None,
        metadata={
            "help": "JSON mapping from regular expressions of parameter names to learning rates. Example: "
            r"""'{"stage_model\.(?!backbone)": 5e-4}' for the layers of a contextual model outside its backbones."""
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(**{name: getattr(self, name) for name in _COUNTS})
        check_positive(temperature=self.temperature)
        check_seed(self.seed)
        for name in ("filter_margin", "filter_relative_margin"):
            margin = getattr(self, name)
            if margin is not None and not math.isfinite(margin):
                raise ValueError(
                    f"`{name}` must be a finite number, got {margin}. To keep all negatives, set "
                    "`filter_false_negatives=False`."
                )
        if self.matryoshka_dims is not None:
            if not isinstance(self.matryoshka_dims, list) or not self.matryoshka_dims:
                raise ValueError(
                    f"`matryoshka_dims` must be a list of widths such as [768, 256, 64], got {self.matryoshka_dims!r}."
                )
            for dim in self.matryoshka_dims:
                check_counts(matryoshka_dims=dim)
        if self.per_device_train_batch_size == 1 and self.in_batch_negatives and not self.gather_across_devices:
            raise ValueError(
                "A batch of 1 pair has no negatives. Raise `per_device_train_batch_size`, and lower "
                "`mini_batch_size` to save memory. With hard negatives alone, set `in_batch_negatives=False`."
            )
        if not isinstance(self.learning_rate_mapping, dict | None):
            raise ValueError(
                f"`learning_rate_mapping` must be a mapping from regular expressions to learning rates, got "
                f"{self.learning_rate_mapping!r}. On the command line give it as JSON."
            )
        if self.mini_batch_num_tokens is not None and self.mini_batch_size is not None:
            raise ValueError(
                f"`mini_batch_size={self.mini_batch_size}` and `mini_batch_num_tokens={self.mini_batch_num_tokens}` "
                "both say what fits in memory. Leave one of them out."
            )
        if self.context_mini_batch_size is not None and not self.caches_gradients:
            raise ValueError(
                f"`context_mini_batch_size={self.context_mini_batch_size}` belongs to gradient caching, which is off. "
                "Set `mini_batch_size` or `mini_batch_num_tokens` too."
            )
        if self.fsdp and self.mini_batch_num_tokens is not None:
            raise ValueError(
                "Under FSDP all processes must run the same number of mini-batches, which `mini_batch_num_tokens` "
                "does not ensure. Use `mini_batch_size`."
            )
        if self.label_smoothing_factor or self.auto_find_batch_size:
            raise ValueError(
                "`label_smoothing_factor` and `auto_find_batch_size` are not supported by this trainer. Leave them "
                "out. To save memory use `mini_batch_size`."
            )
        if self.push_to_hub and self.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            raise ValueError(
                f"`hub_strategy={HubStrategy(self.hub_strategy).value}` would publish the training state, but only "
                "models are published. Use `every_save` or `end`."
            )
        self.remove_unused_columns = False
        # The filter would hide a loss that is not finite, and the trainer raises on it.
        self.logging_nan_inf_filter = False
        self.ddp_find_unused_parameters = False
        # A broadcast in each forward pass would require equal numbers of mini-batches on all processes.
        self.ddp_broadcast_buffers = False
        if self.gradient_checkpointing:
            given: Any = self.gradient_checkpointing_kwargs or {}  # JSON is parsed by now
            self.gradient_checkpointing_kwargs = {"use_reentrant": False, **given}

    @property
    def caches_gradients(self) -> bool:
        """Whether gradient caching is on."""
        return self.mini_batch_size is not None or self.mini_batch_num_tokens is not None


__all__ = ["ContextualTrainingArguments"]
