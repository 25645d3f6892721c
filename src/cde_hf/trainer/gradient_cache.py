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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..modeling import Context
from .losses import InfoNCEOutput
from .step import Encoder, MiniBatchSize, RandomState, Step, Texts, gather_rows, own_gradient, touch_parameters


_Graph = tuple[list[Tensor], list[Tensor | None]]  # outputs and their gradients


@dataclass(frozen=True)
class _Pass:
    """A mini-batch that went through the model without a graph, and what it takes to repeat this with one."""

    rows: Tensor
    texts: Texts
    random_state: RandomState


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

    def compute_loss(self, step: Step, loss_function: Callable[[Tensor], InfoNCEOutput]) -> InfoNCEOutput:
        """
        Computes the loss of a step. `loss.backward()` then fills the gradients of all parameters.

        Args:
            step (`Step`):
                Texts and context documents.
            loss_function (`Callable`):
                Computes the loss of the embeddings of `step.texts`.

        Returns:
            `InfoNCEOutput`: The output of the loss function, with a loss that supports `backward`.
        """
        with torch.no_grad():
            context, context_passes, block_random_state = self._embed_context(step)  # Step (1)
            embed_texts = partial(self.encoder.embed_texts, context=context)
            passes, embeddings = self._embed(step.texts, self.mini_batch_size, embed_texts)  # Step (2)
        # Step (3)
        embeddings.requires_grad_()
        with torch.enable_grad():
            output = loss_function(embeddings)
            (gradients,) = torch.autograd.grad(output.loss, embeddings)
        num_graphs = len(passes) + (block_random_state is not None) + len(context_passes)

        def graphs(grad_output: Tensor) -> Iterator[_Graph]:
            """Computes each part of the step with a graph. Yields its outputs and their gradients."""
            yield from self._repeat(passes, embed_texts, gradients * grad_output)  # Step (4)
            if block_random_state is not None:
                yield self._repeat_block(context, block_random_state)  # Step (5)
            if context_passes:
                leaf: Any = context.embeddings
                own_gradients = own_gradient(leaf.grad, step.part_sizes, step.process_index)
                yield from self._repeat(context_passes, self.encoder.embed_context, own_gradients)  # Step (6)

        def replay(grad_output: Tensor) -> None:
            with torch.enable_grad():
                self._backpropagate(graphs(grad_output), num_graphs)

        loss = output.loss.detach().requires_grad_()
        loss.register_hook(replay)
        return replace(output, loss=loss)

    def _embed_context(self, step: Step) -> tuple[Context, list[_Pass], RandomState | None]:
        """
        Computes the context without a graph. Its vectors and its block are leaves, which accumulate gradients.

        Also returns the passes to repeat, none if nothing that they depend on is trained, and in prefix attention the
        random state before the context block was computed.
        """
        if not self.encoder.has_context:
            return Context(), [], None
        passes, own_embeddings = self._embed(
            step.own_context_documents, self.context_mini_batch_size, self.encoder.embed_context
        )
        embeddings = gather_rows(own_embeddings, step.part_sizes).detach()
        if self.encoder.trains_context:
            embeddings.requires_grad_()
        else:  # as with adapters in the second stage alone
            passes = []
        context = Context(embeddings)
        if not self.encoder.has_prefix:
            return context, passes, None
        with step.block_dropout():
            random_state = RandomState(embeddings.device)
            context = self.encoder.add_block(context)
        leaves = tuple(
            (key.detach().requires_grad_(), value.detach().requires_grad_())
            for key, value in context.keys_values or ()
        )
        return replace(context, keys_values=leaves), passes, random_state

    def _embed(
        self, texts: Texts, size: MiniBatchSize, embed: Callable[[Texts], Tensor]
    ) -> tuple[list[_Pass], Tensor]:
        """Embeds texts without a graph. The embeddings are in the order of the texts."""
        passes, parts = [], []
        for rows, mini_batch in size.split(texts):
            passes.append(_Pass(rows, mini_batch, RandomState(rows.device)))
            parts.append(embed(mini_batch))
        embeddings = torch.cat(parts)
        rows = torch.cat([mini_batch.rows for mini_batch in passes])
        return passes, torch.empty_like(embeddings).index_copy_(0, rows, embeddings)

    def _repeat(self, passes: list[_Pass], embed: Callable[[Texts], Tensor], gradients: Tensor) -> Iterator[_Graph]:
        for mini_batch in passes:
            with mini_batch.random_state.replayed():
                embeddings = embed(mini_batch.texts)
            yield [embeddings], [gradients[mini_batch.rows].to(embeddings.dtype)]

    def _repeat_block(self, context: Context, random_state: RandomState) -> _Graph:
        with random_state.replayed():
            again = self.encoder.add_block(context)
        tensors = [tensor for pair in again.keys_values or () for tensor in pair]
        leaves = [leaf for pair in context.keys_values or () for leaf in pair]
        # The outputs of layers below the first trained parameter have no gradient.
        pairs = [(tensor, leaf.grad) for tensor, leaf in zip(tensors, leaves, strict=True) if tensor.requires_grad]
        return [tensor for tensor, _ in pairs], [gradient for _, gradient in pairs]

    def _backpropagate(self, graphs: Iterator[_Graph], num_graphs: int) -> None:
        for number in range(1, num_graphs + 1):
            is_last = number == num_graphs
            with nullcontext() if is_last else self.no_sync():
                tensors, gradients = next(graphs)
                if is_last and self.touch_all:
                    zero = touch_parameters(self.encoder.model)
                    tensors, gradients = [*tensors, zero], [*gradients, torch.zeros_like(zero)]
                if tensors:
                    torch.autograd.backward(tensors, gradients)


__all__ = ["GradientCache"]
