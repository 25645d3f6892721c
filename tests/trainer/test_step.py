"""Mini-batches of a step, by number of texts and by number of tokens."""

import pytest
import torch

from cde_hf.trainer.step import MiniBatchSize, Texts


@pytest.fixture
def texts():
    lengths = torch.tensor([3, 9, 1, 5, 5, 2, 8])
    mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    return Texts(torch.arange(63).view(7, 9) * mask, mask)


@pytest.mark.parametrize("size", [MiniBatchSize(), MiniBatchSize(1), MiniBatchSize(3), MiniBatchSize(num_tokens=10)])
def test_every_text_is_in_one_mini_batch(texts, size):
    rows = torch.cat(list(size.split(texts)))
    assert sorted(rows.tolist()) == list(range(7))


def test_no_mini_batch_is_larger_than_asked(texts):
    assert [len(rows) for rows in MiniBatchSize(3).split(texts)] == [3, 3, 1]


def test_a_token_budget_counts_padding_and_lets_a_long_text_go_alone(texts):
    shapes = [tuple(texts.select(rows).input_ids.shape) for rows in MiniBatchSize(num_tokens=10).split(texts)]
    assert shapes == [(1, 9), (1, 8), (2, 5), (3, 3)]
    assert all(num_texts * length <= 10 or num_texts == 1 for num_texts, length in shapes)


def test_shared_padding_is_cut_off(texts):
    part = texts.select(torch.tensor([5, 2]))
    assert part.input_ids.tolist() == [[45, 46], [18, 0]]
    assert part.attention_mask.tolist() == [[1, 1], [1, 0]]
