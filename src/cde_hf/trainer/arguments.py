"""Arguments of a training run."""

from dataclasses import dataclass, field

from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy

from ..batching.sampler import ClusterOrder, Grouping
from .collator import ContextSource


@dataclass
class ContextualTrainingArguments(TrainingArguments):
    """
    Arguments of the [`ContextualContrastiveTrainer`], beside those of `TrainingArguments`: loss, batches, context,
    memory and optimizer. Each is described where it is defined and in `--help`.

    What chose their defaults is in `docs/results/README.md`.

    These defaults differ from those of `TrainingArguments`: `learning_rate` 2e-5, `warmup_steps` 0.1,
    `per_device_train_batch_size` 256, `logging_steps` 10, `save_total_limit` 2, `per_device_eval_batch_size` 32.
    Batches are always full, buffers are not broadcast between processes, and gradient checkpointing is not reentrant.
    """

    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "learning_rate_mapping"]  # JSON on the command line

    # Defaults that differ
    learning_rate: float = field(default=2e-5, metadata={"help": "Peak of the learning rate."})
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Steps of linear warm-up. A number below 1 is a share of all steps."}
    )
    per_device_train_batch_size: int = field(default=256, metadata={"help": "Pairs in a batch of one process."})
    per_device_eval_batch_size: int = field(default=32, metadata={"help": "Texts to embed at once in evaluations."})
    logging_steps: float = field(default=10, metadata={"help": "Steps between two lines of the log."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints to keep."})

    # Loss
    temperature: float = field(default=0.02, metadata={"help": "Divisor of the cosine similarities."})
    in_batch_negatives: bool = field(
        default=True, metadata={"help": "Whether the other pairs' documents are negatives, beside the hard ones."}
    )
    gather_across_devices: bool = field(
        default=False,
        metadata={"help": "Whether processes share one batch, its negatives and its context, or have one each."},
    )
    matryoshka_dims: list[int] | None = field(
        default=None, metadata={"help": "Widths to which embeddings are also trained to be cut, such as 768 256 64."}
    )

    # Batches
    batch_grouping: Grouping = field(
        default="cluster",
        metadata={"help": "What a batch is filled from: one cluster, anywhere in a domain, or anywhere."},
    )
    cluster_order: ClusterOrder = field(
        default="tour", metadata={"help": "Which clusters fill a batch together: nearest ones or random ones."}
    )
    filter_false_negatives: bool = field(
        default=True, metadata={"help": "Whether documents that the surrogate scores like the positive are left out."}
    )
    filter_margin: float = field(
        default=0.0, metadata={"help": "How much above the positive's a score must lie to be left out."}
    )
    filter_relative_margin: float | None = field(
        default=None, metadata={"help": "The same as a share of the positive's score, in place of the margin."}
    )
    max_length: int = field(default=512, metadata={"help": "Tokens to read of a text."})

    # Context
    context_source: ContextSource = field(
        default="batch",
        metadata={"help": "Where context documents come from: the batch, its domain, or the whole data set."},
    )
    context_max_length: int | None = field(
        default=None, metadata={"help": "Tokens to read of a context document. Default: as of a text."}
    )

    # Memory
    mini_batch_size: int | None = field(
        default=None, metadata={"help": "Texts in memory at once, by gradient caching. Default: the whole batch."}
    )
    context_mini_batch_size: int | None = field(
        default=None, metadata={"help": "Context documents in memory at once. Default: as `mini_batch_size`."}
    )
    mini_batch_num_tokens: int | None = field(
        default=None, metadata={"help": "Tokens in memory at once, padding included, in place of a number of texts."}
    )

    # Optimizer
    disable_dropout: bool = field(
        default=False,
        metadata={"help": "Whether to train without the backbones' own dropout, which takes much of a step on CPUs."},
    )
    learning_rate_mapping: dict[str, float] | str | None = field(
        default=None,
        metadata={
            "help": "Learning rates of some parameters, as JSON from regular expressions of names to rates. Example: "
            r"""'{"stage_model\.(?!backbone)": 5e-4}' for all layers of a contextual model but its backbones."""
        },
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ("temperature", "mini_batch_size", "context_mini_batch_size", "max_length"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` must be positive, got {value}.")
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
                "Give `mini_batch_size` or `mini_batch_num_tokens` too."
            )
        if self.fsdp and self.mini_batch_num_tokens is not None:
            raise ValueError(
                "Under FSDP all processes must run the same number of mini-batches, but `mini_batch_num_tokens` gives "
                "each its own. Use `mini_batch_size`."
            )
        if self.label_smoothing_factor or self.auto_find_batch_size:
            raise ValueError(
                "`label_smoothing_factor` and `auto_find_batch_size` mean nothing to this loss and these batches. "
                "Leave them out; for less memory use `mini_batch_size`."
            )
        if self.push_to_hub and self.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            raise ValueError(
                f"`hub_strategy={self.hub_strategy.value}` would publish the training state, but only models are "
                "published. Use `every_save` or `end`."
            )
        self.remove_unused_columns = False
        # The sum of a broken loss with others would hide it, and the trainer refuses it anyway.
        self.logging_nan_inf_filter = False
        self.ddp_find_unused_parameters = False
        # A broadcast in each forward pass would tie the processes' numbers of mini-batches together.
        self.ddp_broadcast_buffers = False
        if self.gradient_checkpointing:
            self.gradient_checkpointing_kwargs = {
                "use_reentrant": False,
                **(self.gradient_checkpointing_kwargs or {}),
            }

    @property
    def caches_gradients(self) -> bool:
        """Whether mini-batches go through the model one by one."""
        return self.mini_batch_size is not None or self.mini_batch_num_tokens is not None


__all__ = ["ContextualTrainingArguments"]
