"""What goes through a model in one training step, and the plain way to embed it: one graph from context to texts."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .encoders import Encoder, StepContext
from .gathering import gather_rows
from .mini_batches import Texts
from .random_states import seeded


@dataclass(frozen=True)
class ContextInputs:
    """
    The context of a step.

    Args:
        documents (`Texts`):
            All context documents, on every process.
        part_sizes (`tuple[int, ...]`):
            Number of documents that each process embeds, if the processes share them out; else one number.
        process_index (`int`):
            Which part is this process's.
        block_seed (`int`, *optional*):
            Seed of the context block's dropout, so that processes which share a context also share what is dropped.
    """

    documents: Texts
    part_sizes: tuple[int, ...]
    process_index: int = 0
    block_seed: int | None = None

    @property
    def own_documents(self) -> Texts:
        """The documents that this process embeds."""
        start = sum(self.part_sizes[: self.process_index])
        rows = torch.arange(start, start + self.part_sizes[self.process_index])
        return self.documents.select(rows.to(self.documents.input_ids.device))

    def drawing(self):
        """Where the dropout of the context block is drawn."""
        return nullcontext() if self.block_seed is None else seeded(self.block_seed, self.documents.input_ids)


@dataclass(frozen=True)
class StepInputs:
    """
    One step of this process.

    Args:
        texts (`Texts`):
            Queries, their documents, and the hard negatives of all queries.
        num_queries (`int`):
            Number of queries, and of documents.
        context (`ContextInputs`, *optional*):
            The context. `None` for a biencoder.
    """

    texts: Texts
    num_queries: int
    context: ContextInputs | None = None


def embed_plainly(encoder: Encoder, step: StepInputs) -> Tensor:
    """
    Embeds all texts of a step with one graph, whose memory grows with the batch.

    Args:
        encoder (`Encoder`):
            The model.
        step (`StepInputs`):
            Texts and context.

    Returns:
        `torch.Tensor` of shape `(num_texts, embedding_size)`: The embeddings.
    """
    context = _embed_context_plainly(encoder, step.context) if encoder.has_context else StepContext()
    # Queries are short: apart from the documents they need no padding to the documents' length.
    rows = torch.arange(len(step.texts), device=step.texts.input_ids.device)
    groups = (rows[: step.num_queries], rows[step.num_queries :])
    return torch.cat([encoder.embed_texts(step.texts.select(group), context) for group in groups])


def _embed_context_plainly(encoder: Encoder, context: ContextInputs) -> StepContext:
    embeddings = gather_rows(encoder.embed_context(context.own_documents), context.part_sizes)
    token_frequencies = encoder.count_tokens(context.documents)
    if not encoder.has_prefix:
        return StepContext(embeddings, token_frequencies)
    with context.drawing():
        return StepContext(block=encoder.encode_block(embeddings, token_frequencies))


def touch_parameters(model: nn.Module) -> Tensor:
    """
    A zero that depends on every trainable parameter.

    Added to what is differentiated last, it lets `DistributedDataParallel` see all parameters in one backward pass,
    also those that this step did not need; and a parameter has a gradient whatever the number of processes.
    """
    firsts = [parameter.flatten()[0].float() for parameter in model.parameters() if parameter.requires_grad]
    return torch.stack(firsts).sum() * 0.0


__all__ = ["ContextInputs", "StepInputs", "embed_plainly", "touch_parameters"]
