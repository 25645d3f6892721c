"""The contrastive loss: InfoNCE over a batch, without the documents that must not count as negatives."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class InfoNCEOutput:
    """
    Result of [`filtered_info_nce`].

    Args:
        loss (`torch.Tensor`):
            Scalar, averaged over the queries.
        accuracy (`torch.Tensor`):
            Share of the queries whose positive has the highest score, without a gradient.
        mean_rank (`torch.Tensor`):
            Mean rank of the positive among the documents that count, from 1, without a gradient.
    """

    loss: Tensor
    accuracy: Tensor
    mean_rank: Tensor


def filtered_info_nce(
    query_embeddings: Tensor,
    document_embeddings: Tensor,
    *,
    logit_scale: float,
    left_out: Tensor | None = None,
    positives: Tensor | None = None,
    matryoshka_dims: Sequence[int] | None = None,
    block_size: int | None = None,
) -> InfoNCEOutput:
    """
    InfoNCE over in-batch and hard negatives, with likely false negatives removed from the denominator.

    Relations: `MultipleNegativesRankingLoss` of sentence-transformers without the filter; its cached form is what
    [`GradientCache`] makes of this one.

    Args:
        query_embeddings (`torch.Tensor` of shape `(num_queries, dim)`):
            Query embeddings. Normalised here, so raw model outputs are expected.
        document_embeddings (`torch.Tensor` of shape `(num_documents, dim)`):
            Document embeddings, positives and negatives.
        logit_scale (`float`):
            Multiplier of the cosine similarities, i.e. the inverse temperature.
        left_out (`torch.Tensor` of shape `(num_queries, num_documents)`, *optional*):
            `True` where a document must not count as a negative of a query. The positive always counts.
        positives (`torch.Tensor` of shape `(num_queries,)`, *optional*):
            Index of each query's positive document. Defaults to document `i` for query `i`.
        matryoshka_dims (`Sequence[int]`, *optional*):
            Widths to which the embeddings are also cut; the loss is the mean over the widths. Defaults to the full
            width alone.
        block_size (`int`, *optional*):
            Number of queries whose scores exist at once; each block is computed again in the backward pass. Defaults
            to all.

    Returns:
        `InfoNCEOutput`: The loss, and how well the full embeddings rank the positives.
    """
    num_queries, num_documents = len(query_embeddings), len(document_embeddings)
    if num_documents < num_queries and positives is None:
        raise ValueError(
            f"Every query needs its own positive document, got {num_queries} queries and {num_documents} documents."
        )
    if positives is None:
        positives = torch.arange(num_queries, device=query_embeddings.device)
    width = query_embeddings.shape[1]
    dims = list(matryoshka_dims) if matryoshka_dims is not None else [width]
    block_size = block_size or num_queries
    totals = torch.zeros(3, dtype=query_embeddings.dtype, device=query_embeddings.device)
    for start in range(0, num_queries, block_size):
        rows = slice(start, start + block_size)
        block = (
            query_embeddings[rows],
            document_embeddings,
            positives[rows],
            left_out[rows] if left_out is not None else None,
        )
        if block_size < num_queries:
            totals = totals + checkpoint(_score_block, *block, logit_scale, dims, use_reentrant=False)
        else:
            totals = totals + _score_block(*block, logit_scale, dims)
    loss, num_correct, rank_sum = totals / num_queries
    return InfoNCEOutput(loss, num_correct.detach(), rank_sum.detach())


def _score_block(
    queries: Tensor,
    documents: Tensor,
    positives: Tensor,
    left_out: Tensor | None,
    logit_scale: float,
    dims: list[int],
) -> Tensor:
    """Sums over some queries: the loss, the number of right first places, and the ranks of the positives."""
    if left_out is not None:
        # A similarity threshold flags the positive too, which is its own best match.
        is_positive = F.one_hot(positives, len(documents)).bool()
        left_out = left_out & ~is_positive
    loss = torch.zeros((), dtype=queries.dtype, device=queries.device)
    for dim in dims:
        logits = _scores(queries[:, :dim], documents[:, :dim], left_out) * logit_scale
        loss = loss + F.cross_entropy(logits, positives, reduction="sum") / len(dims)
    with torch.no_grad():
        scores = logits if dims[-1] == queries.shape[1] else _scores(queries, documents, left_out)
        num_better = (scores > scores.gather(1, positives.unsqueeze(1))).sum(dim=1)
        num_correct, rank_sum = (num_better == 0).sum(), (num_better + 1).sum()
    return torch.stack([loss, num_correct.to(loss), rank_sum.to(loss)])


def _scores(queries: Tensor, documents: Tensor, left_out: Tensor | None) -> Tensor:
    scores = F.normalize(queries, dim=-1) @ F.normalize(documents, dim=-1).T  # (num_queries, num_documents)
    return scores if left_out is None else scores.masked_fill(left_out, -torch.inf)


__all__ = ["InfoNCEOutput", "filtered_info_nce"]
