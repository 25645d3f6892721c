"""Training: arguments, collator, loss, gradient cache, trainer, checkpoints."""

from .arguments import ContextualTrainingArguments
from .checkpoints import find_last_checkpoint
from .gradient_cache import GradientCache
from .losses import InfoNCEOutput, filtered_info_nce
from .script import run_training
from .trainer import ContextualContrastiveTrainer


__all__ = [
    "ContextualContrastiveTrainer",
    "ContextualTrainingArguments",
    "GradientCache",
    "InfoNCEOutput",
    "filtered_info_nce",
    "find_last_checkpoint",
    "run_training",
]
