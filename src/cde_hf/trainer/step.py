"""
One training step: the texts and the context documents that go in, and how a model embeds them.

[`embed_plainly`] embeds a step in one graph. `gradient_cache.py` embeds the same step mini-batch by mini-batch.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..modeling import CDEConfig, CDEModel, Context
from ..modeling.pooling import mean_of_tokens


@dataclass(frozen=True)
class Texts:
    """
    Tokenized texts, padded on the right.

    Args:
        input_ids (`torch.Tensor` of shape `(num_texts, sequence_length)`):
            Token ids.
        attention_mask (`torch.Tensor` of shape `(num_texts, sequence_length)`):
            1 for tokens, 0 for padding.
        lengths (`list[int]`):
            Number of tokens of each text. Counted by the collator, because reading them from the mask on a GPU would
            make the host wait for it.
    """

    input_ids: Tensor
    attention_mask: Tensor
    lengths: list[int]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> "Texts":
        """A range of the texts, without the columns that are padding in all of them."""
        lengths = self.lengths[rows]
        longest = max([1, *lengths])
        input_ids, attention_mask = self.input_ids[rows, :longest], self.attention_mask[rows, :longest]
        return Texts(input_ids.contiguous(), attention_mask.contiguous(), lengths)


NO_TEXTS = Texts(torch.empty(0, 0, dtype=torch.long), torch.empty(0, 0, dtype=torch.long), [])


@dataclass(frozen=True)
class MiniBatchSize:
    """
    How many texts go through a model at once.

    Args:
        num_texts (`int`, *optional*):
            Largest number of texts. Defaults to no limit.
        num_tokens (`int`, *optional*):
            Largest number of tokens, padding included. A longer text goes alone. Defaults to no limit.
    """

    num_texts: int | None = None
    num_tokens: int | None = None

    def split(self, texts: Texts) -> Iterator[tuple[Tensor, Texts]]:
        """
        Yields the mini-batches, each with the row numbers of its texts.

        Texts are sorted by length, so that little is padding, and the longest come first.
        """
        order = sorted(range(len(texts)), key=lambda row: -texts.lengths[row])
        # One copy to the device for all mini-batches. The host does not wait for it.
        rows = torch.tensor(order).to(texts.input_ids.device, non_blocking=True)
        texts = Texts(texts.input_ids[rows], texts.attention_mask[rows], [texts.lengths[row] for row in order])
        start = 0
        while start < len(texts):
            num_texts = self.num_texts or len(texts)
            if self.num_tokens is not None:
                num_texts = min(num_texts, max(1, self.num_tokens // max(1, texts.lengths[start])))
            mini_batch = slice(start, start + num_texts)
            yield rows[mini_batch], texts[mini_batch]
            start += num_texts


class RandomState:
    """
    The current random state, on the CPU and on another device.

    The state of a GPU's generator lives on the host, so nothing waits for the GPU. The states are read here, because
    `torch.utils.checkpoint.get_device_states` fails on Apple GPUs as long as `torch.mps` has no `device` (torch 2.13).

    Args:
        device (`torch.device`):
            Device of the forward pass that follows.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._cpu_state = torch.get_rng_state()
        self._device_module = torch.get_device_module(device) if device.type != "cpu" else None
        self._device_arguments = (device,) if device.type != "mps" else ()  # there is one Apple GPU at most
        if self._device_module is not None:
            self._device_state = self._device_module.get_rng_state(*self._device_arguments)

    def restore(self) -> None:
        """Restores this state."""
        torch.set_rng_state(self._cpu_state)
        if self._device_module is not None:
            self._device_module.set_rng_state(self._device_state, *self._device_arguments)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Repeats the random numbers after this state, for equal dropout, and then restores the current state."""
        present = RandomState(self._device)
        self.restore()
        try:
            yield
        finally:
            present.restore()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Uses random numbers from a seed, on the CPU and on another device, and then restores the current state."""
    with RandomState(device).replayed():
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Step:
    """
    The inputs of one step on this process.

    Args:
        texts (`Texts`):
            Queries, their documents, and the hard negatives of all queries, in this order.
        num_queries (`int`):
            Number of queries, and of documents.
        context_documents (`Texts`, *optional*):
            All context documents, on every process. Defaults to none, for a biencoder.
        num_parts (`int`, *optional*, defaults to `1`):
            Number of processes that embed the context documents together, each an equal part.
        process_index (`int`, *optional*, defaults to `0`):
            The part that this process embeds.
        block_seed (`int`, *optional*):
            Seed of the dropout in the context block, so that processes that share a context use the same dropout.
    """

    texts: Texts
    num_queries: int
    context_documents: Texts = NO_TEXTS
    num_parts: int = 1
    process_index: int = 0
    block_seed: int | None = None

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Number of context documents that each process embeds."""
        return (len(self.context_documents) // self.num_parts,) * self.num_parts

    @property
    def own_context_documents(self) -> Texts:
        """The context documents that this process embeds."""
        size = self.part_sizes[0]
        return self.context_documents[self.process_index * size : (self.process_index + 1) * size]

    def block_dropout(self) -> AbstractContextManager:
        """Context manager for the dropout of the context block."""
        return nullcontext() if self.block_seed is None else seeded(self.block_seed, self.texts.input_ids.device)


class Encoder:
    """
    A model under training: a [`CDEModel`], or any encoder of transformers as a biencoder with mean pooling.

    All calls go through the `forward` of the wrapped model, where distribution, autocast and compilation take effect.

    Args:
        model (`nn.Module`):
            The model, wrapped by the trainer.
        bare_model (`PreTrainedModel`):
            The same model without wrappers.
    """

    def __init__(self, model: nn.Module, bare_model: PreTrainedModel):
        self.model = model
        self.config = bare_model.config if is_contextual(bare_model) else None
        self.trains_context = is_contextual(bare_model) and any(
            parameter.requires_grad for parameter in bare_model.context_parameters()
        )

    @property
    def has_context(self) -> bool:
        """Whether the model reads a context."""
        return self.config is not None

    @property
    def has_prefix(self) -> bool:
        """Whether the context is a block that is computed once for all texts."""
        return self.config is not None and self.config.context_attention == "prefix"

    def embed_context(self, documents: Texts) -> Tensor:
        """First-stage vectors, of shape `(num_documents, hidden_size)`."""
        return self.model(
            context_input_ids=documents.input_ids, context_attention_mask=documents.attention_mask
        ).context_embeddings

    def add_block(self, context: Context) -> Context:
        """The context with the context block of prefix attention."""
        return self.model(context=replace(context, keys_values=None)).context

    def embed_texts(self, texts: Texts, context: Context) -> Tensor:
        """Embeddings of shape `(num_texts, hidden_size)`, not normalised."""
        inputs = {"input_ids": texts.input_ids, "attention_mask": texts.attention_mask}
        if not self.has_context:
            return mean_of_tokens(self.model(**inputs).last_hidden_state, texts.attention_mask)
        return self.model(**inputs, context=context).embeddings


def is_contextual(model: PreTrainedModel) -> TypeGuard[CDEModel]:
    """Whether a bare model reads a context. Its class may come from a checkpoint's own copy of the code."""
    return model.config.model_type == CDEConfig.model_type


def embed_plainly(encoder: Encoder, step: Step) -> Tensor:
    """
    Embeds all texts of a step in one graph, whose memory grows with the batch.

    Args:
        encoder (`Encoder`):
            The model.
        step (`Step`):
            Texts and context documents.

    Returns:
        `torch.Tensor` of shape `(num_texts, hidden_size)`: The embeddings.
    """
    context = Context()
    if encoder.has_context:
        # Without token frequencies: in training the pooling is the plain mean.
        context = Context(gather_rows(encoder.embed_context(step.own_context_documents), step.part_sizes))
        if encoder.has_prefix:
            with step.block_dropout():
                context = encoder.add_block(context)
    # Queries are short. Embedded separately, they are not padded to the documents' length.
    groups = (step.texts[: step.num_queries], step.texts[step.num_queries :])
    return torch.cat([encoder.embed_texts(group, context) for group in groups])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        ctx.sizes = sizes
        padded = F.pad(rows, (0, 0, 0, max(sizes) - len(rows))).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return own_gradient(gradient.contiguous(), ctx.sizes, dist.get_rank()), None


def gather_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """
    Concatenates the rows of all processes. Gradients flow back to the process that a row came from.

    Args:
        rows (`torch.Tensor` of shape `(num_rows, dim)`):
            The rows of this process.
        sizes (`Sequence[int]`):
            Number of rows of each process, known to every process. With a single number nothing is gathered.

    Returns:
        `torch.Tensor` of shape `(sum(sizes), dim)`: All rows, in the order of the processes.
    """
    return _GatherRows.apply(rows, tuple(sizes)) if len(sizes) > 1 else rows


def own_gradient(gradient: Tensor, sizes: Sequence[int], process_index: int) -> Tensor:
    """
    Computes the gradient of this process's rows from the gradient of the gathered rows.

    Every process has its own loss that depends on all rows, so the gradients are summed over the processes.
    """
    if len(sizes) == 1:
        return gradient
    dist.all_reduce(gradient)
    return gradient.split(list(sizes))[process_index]


def touch_parameters(model: nn.Module) -> Tensor:
    """
    A zero that depends on every trainable parameter.

    Added to what is differentiated last, it lets `DistributedDataParallel` see all parameters in one backward pass,
    even those that this step did not use. Every parameter then has a gradient, whatever the number of processes.
    """
    firsts = [parameter.flatten()[0].float() for parameter in model.parameters() if parameter.requires_grad]
    return torch.stack(firsts).sum() * 0.0


__all__ = [
    "Encoder",
    "MiniBatchSize",
    "RandomState",
    "Step",
    "Texts",
    "embed_plainly",
    "gather_rows",
    "is_contextual",
    "own_gradient",
    "seeded",
    "touch_parameters",
]
