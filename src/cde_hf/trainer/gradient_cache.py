"""
Two-stage gradient caching: a batch of any size needs the activation memory of one mini-batch.

1. Embed the context documents without a graph, mini-batch by mini-batch. In prefix attention, also compute the context
   block.
2. Embed all texts without a graph, mini-batch by mini-batch.
3. Compute the loss and its gradient with respect to the embeddings. Only this gradient is kept.
4. In the backward pass, embed the texts again, with a graph and the same dropout, and backpropagate each mini-batch.
   This also accumulates the gradient of the context: of the block in prefix attention, of the context vectors in joint
   attention.
5. In prefix attention, compute the context block again and backpropagate its gradient to the context vectors.
6. Embed the context documents again and backpropagate the gradient of their vectors.

Steps (4) to (6) run in a hook on the loss. The trainer calls `backward` as usual, and factors of the loss, such as
gradient accumulation or loss scaling, reach every step. Gradients are synchronised between processes only in the last
backward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..modeling import Context
from .losses import InfoNCEOutput
from .step import (
    ContextInputs,
    Encoder,
    MiniBatchSize,
    RandomState,
    StepInputs,
    Texts,
    gather_rows,
    own_gradient,
    touch_parameters,
)


@dataclass(frozen=True)
class _Pass:
    """One forward pass without a graph: the rows that went through the model, and the random state before it."""

    rows: Tensor
    random_state: RandomState


@dataclass(frozen=True)
class _CachedContext:
    """
    The context after step (1), and what steps (5) and (6) need to compute it again.

    Args:
        context (`Context`):
            What the texts see. Its vectors and its block are leaves that accumulate gradients.
        passes (`list[_Pass]`):
            Forward passes of the context documents. Empty if the first stage is not trained.
        block_random_state (`RandomState`, *optional*):
            Random state before the context block was computed, in prefix attention.
    """

    context: Context = field(default_factory=Context)
    passes: list[_Pass] = field(default_factory=list)
    block_random_state: RandomState | None = None


class GradientCache:
    """
    Computes a loss with cached gradients.

    Args:
        encoder (`Encoder`):
            The model.
        mini_batch_size (`MiniBatchSize`):
            Mini-batches of the second stage.
        context_mini_batch_size (`MiniBatchSize`):
            Mini-batches of the first stage.
        no_sync (`Callable`, *optional*):
            Returns a context manager in which a backward pass does not synchronise gradients between processes.
            Defaults to `nullcontext`.
        touch_all (`bool`, *optional*, defaults to `True`):
            Whether the last backward pass touches every parameter, as `DistributedDataParallel` requires.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        mini_batch_size: MiniBatchSize,
        context_mini_batch_size: MiniBatchSize,
        no_sync: Callable[[], AbstractContextManager] = nullcontext,
        touch_all: bool = True,
    ):
        self.encoder = encoder
        self.mini_batch_size = mini_batch_size
        self.context_mini_batch_size = context_mini_batch_size
        self.no_sync = no_sync
        self.touch_all = touch_all

    def compute_loss(self, step: StepInputs, loss_function: Callable[[Tensor], InfoNCEOutput]) -> InfoNCEOutput:
        """
        Computes the loss of a step. `loss.backward()` then fills the gradients of all parameters.

        Args:
            step (`StepInputs`):
                Texts and context documents.
            loss_function (`Callable`):
                Computes the loss of the embeddings of `step.texts`.

        Returns:
            `InfoNCEOutput`: The output of the loss function, with a loss that supports `backward`.
        """
        with torch.no_grad():
            cached = self._embed_context(step.context) if self.encoder.has_context else _CachedContext()  # Step (1)
            passes, embeddings = self._embed(  # Step (2)
                step.texts, self.mini_batch_size, lambda part: self.encoder.embed_texts(part, cached.context)
            )
        # Step (3)
        embeddings.requires_grad_()
        with torch.enable_grad():
            output = loss_function(embeddings)
            (gradients,) = torch.autograd.grad(output.loss, embeddings)

        def replay(grad_output: Tensor) -> None:
            with torch.enable_grad():
                self._replay(step, cached, passes, gradients * grad_output)

        loss = output.loss.detach().requires_grad_()
        loss.register_hook(replay)
        return replace(output, loss=loss)

    def _embed_context(self, inputs: ContextInputs) -> _CachedContext:
        passes, own_embeddings = self._embed(
            inputs.own_documents, self.context_mini_batch_size, self.encoder.embed_context
        )
        embeddings = gather_rows(own_embeddings, inputs.part_sizes).detach()
        if self.encoder.trains_first_stage:
            embeddings.requires_grad_()
        else:  # as with adapters in the second stage alone
            passes = []
        context = Context(embeddings, self.encoder.count_tokens(inputs.documents))
        if not self.encoder.has_prefix:
            return _CachedContext(context, passes)
        with inputs.drawing():
            random_state = RandomState(embeddings.device)
            context = self.encoder.add_block(context)
        leaves = tuple(
            (key.detach().requires_grad_(), value.detach().requires_grad_()) for key, value in context.keys_values
        )
        context = replace(context, keys_values=leaves)
        return _CachedContext(context, passes, random_state)

    def _embed(
        self, texts: Texts, size: MiniBatchSize, embed: Callable[[Texts], Tensor]
    ) -> tuple[list[_Pass], Tensor]:
        """Embeds texts without a graph. The embeddings are in the order of the texts."""
        passes, parts = [], []
        for rows in size.split(texts):
            passes.append(_Pass(rows, RandomState(texts.input_ids.device)))
            parts.append(embed(texts.select(rows)))
        embeddings = torch.empty(len(texts), parts[0].shape[1], dtype=parts[0].dtype, device=parts[0].device)
        for made, part in zip(passes, parts, strict=True):
            embeddings[made.rows] = part
        return passes, embeddings

    def _replay(self, step: StepInputs, cached: _CachedContext, passes: list[_Pass], gradients: Tensor) -> None:
        graphs = self._graphs(step, cached, passes, gradients)
        num_graphs = len(passes) + (cached.block_random_state is not None) + len(cached.passes)
        for index in range(num_graphs):
            is_last = index == num_graphs - 1
            with nullcontext() if is_last else self.no_sync():
                tensors, their_gradients = next(graphs)
                if is_last and self.touch_all:
                    zero = touch_parameters(self.encoder.model)
                    tensors, their_gradients = [*tensors, zero], [*their_gradients, torch.zeros_like(zero)]
                if tensors:
                    torch.autograd.backward(tensors, their_gradients)

    def _graphs(
        self, step: StepInputs, cached: _CachedContext, passes: list[_Pass], gradients: Tensor
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yields the outputs of each part of the step, computed with a graph, and their gradients."""
        for made in passes:  # Step (4)
            with made.random_state.replayed():
                embeddings = self.encoder.embed_texts(step.texts.select(made.rows), cached.context)
            yield [embeddings], [gradients[made.rows].to(embeddings.dtype)]
        if cached.block_random_state is not None:  # Step (5)
            yield self._rebuild_block(cached)
        if cached.passes:  # Step (6)
            inputs = step.context
            own_gradients = own_gradient(cached.context.embeddings.grad, inputs.part_sizes, inputs.process_index)
            documents = inputs.own_documents
            for made in cached.passes:
                with made.random_state.replayed():
                    embeddings = self.encoder.embed_context(documents.select(made.rows))
                yield [embeddings], [own_gradients[made.rows].to(embeddings.dtype)]

    def _rebuild_block(self, cached: _CachedContext) -> tuple[list[Tensor], list[Tensor]]:
        with cached.block_random_state.replayed():
            again = self.encoder.add_block(cached.context)
        tensors = [tensor for pair in again.keys_values for tensor in pair]
        leaves = [leaf for pair in cached.context.keys_values for leaf in pair]
        # The outputs of layers below the first trained parameter have no gradient.
        pairs = [(tensor, leaf.grad) for tensor, leaf in zip(tensors, leaves, strict=True) if tensor.requires_grad]
        return [tensor for tensor, _ in pairs], [gradient for _, gradient in pairs]


__all__ = ["GradientCache"]
