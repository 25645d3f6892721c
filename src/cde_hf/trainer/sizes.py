"""
Chooses the sizes of a training run from pairs, encoder and machine, where the user did not give them.

The numbers come from training on small sets of pairs, see `docs/results/own-pairs.md`.
"""

import math
import os
import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..batching import BatchPlan, batch_statistics
from ..data import Prompts, RetrievalSet
from ..modeling.backbones import longest_text
from .arguments import ContextualTrainingArguments
from .step import is_contextual


NUM_EVALUATIONS = 4
# Layers that a new contextual model adds to its encoder start from random weights and learn faster.
NEW_LAYERS = {r"stage_model\.(?!backbone)": 5e-4}
_SETTINGS = {"learning_rate": 3e-5, "temperature": 0.05, "disable_dropout": True}
_MAX_STEPS, _MAX_STEPS_ON_CPU = 1000, 100
_MANY_FALSE_NEGATIVES = 0.2
_NUM_SAMPLED_PAIRS = 500
_NUM_TIMED_TEXTS = 16
_BACKWARD_COST = 2.0  # of a backward pass, in forward passes
_UNKNOWN_MEMORY = 2**33
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # exceeded, it ends the process
_BYTES_PER_ACTIVATION = 160  # of a token, a layer and a dimension, for a backward pass

# What `choose_sizes` may set, of the arguments that `--help` shows with a default.
CHOSEN = frozenset(
    {
        *_SETTINGS,
        "max_steps",
        "num_train_epochs",
        "per_device_train_batch_size",
        "max_length",
        "mini_batch_size",
        "bf16",
        "filter_false_negatives",
        "save_steps",
        "eval_strategy",
        "logging_steps",
    }
)

# A user who gives one of these has a strategy of her own for evaluations and checkpoints.
STRATEGY = {"eval_strategy", "eval_steps", "save_strategy", "load_best_model_at_end", "metric_for_best_model"}


@dataclass(frozen=True)
class TextLengths:
    """
    Lengths of texts in tokens, with prompts, from a sample of the pairs.

    Args:
        query (`float`):
            Mean length of a query.
        document (`float`):
            Mean length of a document.
        longest (`int`):
            Length that 95% of the queries and 95% of the documents do not exceed.
    """

    query: float
    document: float
    longest: int

    @classmethod
    def of(cls, pairs: Dataset, tokenizer: PreTrainedTokenizerBase, prompts: Prompts) -> "TextLengths":
        """Measures the lengths of pairs that are spread over the data set."""
        rows = range(0, len(pairs), max(1, len(pairs) // _NUM_SAMPLED_PAIRS))
        sample = prompts.apply(pairs.select(rows).select_columns(["query", "document"])[:])
        query, document = (
            sorted(len(ids) for ids in tokenizer(sample[name], verbose=False)["input_ids"])
            for name in ("query", "document")
        )
        longest = max(lengths[int(0.95 * (len(lengths) - 1))] for lengths in (query, document))
        return cls(sum(query) / len(query), sum(document) / len(document), longest)


def choose_sizes(
    args: ContextualTrainingArguments,
    given: Set[str],
    model: PreTrainedModel,
    num_pairs: int,
    lengths: TextLengths,
    *,
    largest_domain: int,
    is_evaluated: bool,
    has_new_layers: bool = False,
) -> None:
    """
    Sets learning rate, precision, batch, length, steps, mini-batch and evaluations, as far as the user left them open.

    Args:
        args (`ContextualTrainingArguments`):
            The arguments, which are changed.
        given (`Set[str]`):
            Names of the arguments that the user gave.
        model (`PreTrainedModel`):
            The model to train.
        num_pairs (`int`):
            Number of pairs to train on.
        lengths (`TextLengths`):
            Lengths of their texts.
        largest_domain (`int`):
            Number of pairs of the largest domain, which must fill a batch.
        is_evaluated (`bool`):
            Whether there are held-out queries. The model is then the best of `NUM_EVALUATIONS` states, or the start if
            no state is better.
        has_new_layers (`bool`, *optional*, defaults to `False`):
            Whether the model is a contextual one that was just built around an encoder.
    """
    on_cpu = args.device.type == "cpu"
    for name, value in _SETTINGS.items():
        if name not in given:
            setattr(args, name, value)
    if has_new_layers and "learning_rate_mapping" not in given:
        args.learning_rate_mapping = dict(NEW_LAYERS)
    if not given & {"bf16", "fp16"} and _computes_bf16(args.device):
        args.bf16, args.mixed_precision = True, "bf16"
    config = _backbone(model).config
    if "per_device_train_batch_size" not in given:
        fillable = min(num_pairs / 8, largest_domain) / (args.world_size if args.gather_across_devices else 1)
        args.per_device_train_batch_size = max(2, min(64 if on_cpu else 256, _power_of_two(fillable)))
    if "max_length" not in given:
        args.max_length = min(
            longest_text(_backbone(model)), 256 if on_cpu else 512, 32 * math.ceil(lengths.longest / 32)
        )
    if not given & {"max_steps", "num_train_epochs"}:
        args.max_steps = min(count_steps(args, num_pairs), _MAX_STEPS_ON_CPU if on_cpu else _MAX_STEPS)
    num_steps = count_steps(args, num_pairs)
    if not given & {"mini_batch_size", "mini_batch_num_tokens"}:
        per_text = _BYTES_PER_ACTIVATION * config.num_hidden_layers * config.hidden_size * args.max_length
        fitting = _power_of_two(_memory(args) / 4 / per_text)
        if fitting < 2 * args.per_device_train_batch_size:
            args.mini_batch_size = max(4, fitting)
    if is_evaluated:
        args.eval_strategy = args.save_strategy = "steps"
        if "save_steps" not in given:
            args.save_steps = math.ceil(num_steps / NUM_EVALUATIONS)
        args.eval_steps = args.save_steps
        args.eval_on_start = args.load_best_model_at_end = args.greater_is_better = True
        args.metric_for_best_model = "ndcg@10_own" if is_contextual(model) else "ndcg@10"
    if "logging_steps" not in given:
        args.logging_steps = max(1, min(10, num_steps // 10))


def has_many_false_negatives(plan: BatchPlan) -> bool:
    """
    Whether so many documents of random batches may be right answers that the filter helps.

    Where there are few, the filter removes useful hard negatives.
    """
    batch_size = min(64, len(plan))
    return batch_statistics(plan, batch_size, "random")["filtered_share"] > _MANY_FALSE_NEGATIVES


def count_steps(args: ContextualTrainingArguments, num_pairs: int) -> int:
    """Number of steps of a run, not counting that some domains cannot fill their last batch."""
    if args.max_steps > 0:
        return args.max_steps
    pairs_per_step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    return math.ceil(args.num_train_epochs * max(1, num_pairs // pairs_per_step))


def estimate_seconds(
    args: ContextualTrainingArguments,
    model: PreTrainedModel,
    lengths: TextLengths,
    num_steps: int,
    tested: RetrievalSet | None,
) -> float:
    """
    Estimates how long a run takes, from the time of a forward pass over random tokens.

    Args:
        args (`ContextualTrainingArguments`):
            The arguments, with all sizes.
        model (`PreTrainedModel`):
            The model, on the device that it is trained on.
        lengths (`TextLengths`):
            Lengths of the texts.
        num_steps (`int`):
            Number of steps to train.
        tested (`RetrievalSet`, *optional*):
            What the model is evaluated on.
    """
    query, document = (min(length, args.max_length) for length in (lengths.query, lengths.document))
    num_contexts = model.config.context_size if is_contextual(model) else 0
    tokens = args.per_device_train_batch_size * (query + document) + num_contexts * document
    passes = 1 + _BACKWARD_COST + args.caches_gradients
    total = num_steps * args.gradient_accumulation_steps * tokens * passes
    if tested is not None:
        # The table at the end scores four models, and a contextual model is evaluated in two contexts.
        every: Any = args.eval_steps  # `choose_sizes` has set it
        share = every if every < 1 else every / num_steps
        num_evaluations = args.eval_on_start + math.ceil(1 / share)
        num_scored = 4 + num_evaluations * (2 if num_contexts else 1)
        total += num_scored * (len(tested.corpus) * document + len(tested.queries) * query)
    return total * _seconds_per_token(model, round(document), args)


@torch.no_grad()
def _seconds_per_token(model: PreTrainedModel, length: int, args: ContextualTrainingArguments) -> float:
    backbone = _backbone(model)
    ids = torch.full((_NUM_TIMED_TEXTS, max(2, length)), 5, device=backbone.device)
    seconds = math.inf
    with torch.autocast(backbone.device.type, dtype=torch.bfloat16, enabled=args.bf16):
        for _ in range(2):  # the first pass also allocates
            start = time.perf_counter()
            backbone(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.sum().item()
            seconds = min(seconds, time.perf_counter() - start)
    return seconds / ids.numel()


def _backbone(model: PreTrainedModel) -> PreTrainedModel:
    return model.second_stage_model.backbone if is_contextual(model) else model


def _memory(args: ContextualTrainingArguments) -> int:
    """Bytes of the GPU of a process, or its share of the memory of machine or container: the same in all processes."""
    if args.device.type == "cuda":
        return torch.cuda.get_device_properties(args.device).total_memory
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not on Windows
        return _UNKNOWN_MEMORY
    with suppress(OSError, ValueError):  # no container, or `max`
        memory = min(memory, int(_CONTAINER_LIMIT.read_text()))
    return memory // args.world_size


def _computes_bf16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16, which halve the time of a step."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _power_of_two(number: float) -> int:
    """The largest power of two that is at most a number, and at least 1."""
    return 2 ** max(0, math.floor(math.log2(max(1.0, number))))


__all__ = [
    "CHOSEN",
    "NEW_LAYERS",
    "NUM_EVALUATIONS",
    "STRATEGY",
    "TextLengths",
    "choose_sizes",
    "count_steps",
    "estimate_seconds",
    "has_many_false_negatives",
]
