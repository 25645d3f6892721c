"""The contrastive loss: InfoNCE over a batch, without likely false negatives."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class InfoNCEOutput:
    """
    Result of [`filtered_info_nce`].

    Args:
        loss (`torch.Tensor`):
            Scalar loss, averaged over the queries.
        accuracy (`torch.Tensor`):
            Share of the queries whose positive has the highest score. Has no gradient.
        mean_rank (`torch.Tensor`):
            Mean rank of the positive, from 1, among the documents that are not masked. Has no gradient.
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
) -> InfoNCEOutput:
    """
    InfoNCE over in-batch and hard negatives, with likely false negatives removed from the denominator.

    Without the filter it equals sentence-transformers' `MultipleNegativesRankingLoss`, and with [`GradientCache`] its
    `CachedMultipleNegativesRankingLoss`.

    Args:
        query_embeddings (`torch.Tensor` of shape `(num_queries, dim)`):
            Query embeddings. Normalised here, so raw model outputs are expected.
        document_embeddings (`torch.Tensor` of shape `(num_documents, dim)`):
            Document embeddings, positives and negatives.
        logit_scale (`float`):
            Multiplier of the cosine similarities, i.e. the inverse temperature.
        left_out (`torch.Tensor` of shape `(num_queries, num_documents)`, *optional*):
            `True` where a document is not a negative of a query. The positive is never masked.
        positives (`torch.Tensor` of shape `(num_queries,)`, *optional*):
            Index of each query's positive document. Defaults to document `i` for query `i`.
        matryoshka_dims (`Sequence[int]`, *optional*):
            Widths to which the embeddings are truncated. The loss is the mean over the widths. Defaults to the full
            width alone.

    Returns:
        `InfoNCEOutput`: The loss, and the accuracy and mean rank of the full embeddings.
    """
    num_queries, num_documents = len(query_embeddings), len(document_embeddings)
    if num_documents < num_queries and positives is None:
        raise ValueError(
            f"Every query needs its own positive document, got {num_queries} queries and {num_documents} documents."
        )
    if positives is None:
        positives = torch.arange(num_queries, device=query_embeddings.device)
    if left_out is not None:
        # A similarity threshold flags the positive too, because it is its own best match.
        left_out = left_out & ~F.one_hot(positives, num_documents).bool()
    width = query_embeddings.shape[1]
    dims = list(matryoshka_dims) if matryoshka_dims is not None else [width]
    losses = []
    for dim in dims:
        logits = _scores(query_embeddings[:, :dim], document_embeddings[:, :dim], left_out) * logit_scale
        losses.append(F.cross_entropy(logits, positives))
    with torch.no_grad():
        scores = logits if dims[-1] == width else _scores(query_embeddings, document_embeddings, left_out)
        num_better = (scores > scores.gather(1, positives.unsqueeze(1))).sum(dim=1)
        accuracy, mean_rank = (num_better == 0).to(scores).mean(), (num_better + 1).to(scores).mean()
    return InfoNCEOutput(torch.stack(losses).mean(), accuracy, mean_rank)


def _scores(queries: Tensor, documents: Tensor, left_out: Tensor | None) -> Tensor:
    scores = F.normalize(queries, dim=-1) @ F.normalize(documents, dim=-1).T  # (num_queries, num_documents)
    return scores if left_out is None else scores.masked_fill(left_out, -torch.inf)


__all__ = ["InfoNCEOutput", "filtered_info_nce"]
