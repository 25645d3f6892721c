"""The contrastive loss against a version that goes query by query."""

import math

import pytest
import torch
import torch.nn.functional as F

from cde_hf.trainer import filtered_info_nce


@pytest.fixture
def embeddings():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    documents = torch.randn(9, 8, generator=generator, dtype=torch.float64)
    return queries.requires_grad_(), documents.requires_grad_()


@pytest.fixture
def left_out():
    return torch.rand(5, 9, generator=torch.Generator().manual_seed(1)) < 0.4


def brute_force(queries, documents, logit_scale, left_out=None, positives=range(5)):
    losses = []
    for row, positive in enumerate(positives):
        scores = {}
        for column in range(len(documents)):
            if column == positive or left_out is None or not left_out[row, column]:
                scores[column] = F.cosine_similarity(queries[row], documents[column], dim=0) * logit_scale
        losses.append(torch.logsumexp(torch.stack(list(scores.values())), dim=0) - scores[positive])
    return torch.stack(losses).mean()


def test_it_is_the_loss_query_by_query(embeddings, left_out):
    queries, documents = embeddings
    output = filtered_info_nce(queries, documents, logit_scale=5.0, left_out=left_out)
    torch.testing.assert_close(output.loss, brute_force(queries, documents, 5.0, left_out))
    unfiltered = filtered_info_nce(queries, documents, logit_scale=5.0)
    torch.testing.assert_close(unfiltered.loss, brute_force(queries, documents, 5.0))
    assert unfiltered.loss > output.loss


def test_the_positive_is_never_left_out(embeddings):
    queries, documents = embeddings
    output = filtered_info_nce(queries, documents, logit_scale=5.0, left_out=torch.ones(5, 9, dtype=torch.bool))
    assert output.loss == 0
    assert output.accuracy == 1


def test_positives_may_lie_anywhere(embeddings):
    queries, documents = embeddings
    positives = torch.tensor([3, 4, 5, 6, 7])
    output = filtered_info_nce(queries, documents, logit_scale=2.0, positives=positives)
    torch.testing.assert_close(output.loss, brute_force(queries, documents, 2.0, positives=positives.tolist()))


def test_matryoshka_is_the_mean_over_the_widths(embeddings):
    queries, documents = embeddings
    parts = [filtered_info_nce(queries[:, :dim], documents[:, :dim], logit_scale=5.0).loss for dim in (8, 4, 2)]
    output = filtered_info_nce(queries, documents, logit_scale=5.0, matryoshka_dims=[8, 4, 2])
    torch.testing.assert_close(output.loss, torch.stack(parts).mean())
    full = filtered_info_nce(queries, documents, logit_scale=5.0)
    assert (output.accuracy, output.mean_rank) == (full.accuracy, full.mean_rank)


def test_accuracy_and_rank_are_those_of_the_positive():
    queries = torch.eye(3)
    documents = torch.stack([queries[0], queries[2], queries[1] + queries[2]])
    output = filtered_info_nce(queries, documents, logit_scale=1.0)
    assert output.accuracy == pytest.approx(1 / 3)
    assert output.mean_rank == pytest.approx((1 + 2 + 2) / 3)
    assert math.isfinite(output.loss)


def test_a_query_without_a_document_is_refused():
    with pytest.raises(ValueError, match="Every query needs its own positive document, got 3 queries and 2 documents"):
        filtered_info_nce(torch.randn(3, 4), torch.randn(2, 4), logit_scale=1.0)
