"""Mini-batches of a step, by number of texts and by number of tokens, and the random state of its dropout."""

import pytest
import torch

from cde_hf.trainer.step import MiniBatchSize, RandomState, Texts, seeded


@pytest.fixture
def texts():
    lengths = torch.tensor([3, 9, 1, 5, 5, 2, 8])
    mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    return Texts(torch.arange(63).view(7, 9) * mask, mask, lengths.tolist())


@pytest.mark.parametrize("size", [MiniBatchSize(), MiniBatchSize(1), MiniBatchSize(3), MiniBatchSize(num_tokens=10)])
def test_every_text_is_in_one_mini_batch(texts, size):
    found = {}
    for rows, mini_batch in size.split(texts):
        for row, ids, length in zip(rows.tolist(), mini_batch.input_ids, mini_batch.lengths, strict=True):
            assert row not in found
            found[row] = ids[:length].tolist()
    assert found == {row: texts.input_ids[row, :length].tolist() for row, length in enumerate(texts.lengths)}


def test_no_mini_batch_is_larger_than_asked(texts):
    assert [len(mini_batch) for _, mini_batch in MiniBatchSize(3).split(texts)] == [3, 3, 1]


def test_a_token_budget_counts_padding_and_lets_a_long_text_go_alone(texts):
    shapes = [tuple(part.input_ids.shape) for _, part in MiniBatchSize(num_tokens=10).split(texts)]
    assert shapes == [(1, 9), (1, 8), (2, 5), (3, 3)]
    assert all(num_texts * length <= 10 or num_texts == 1 for num_texts, length in shapes)


def test_shared_padding_is_cut_off(texts):
    part = texts[2:5]
    assert part.input_ids.tolist() == [[18, 0, 0, 0, 0], [27, 28, 29, 30, 31], [36, 37, 38, 39, 40]]
    assert part.attention_mask.tolist() == [[1, 0, 0, 0, 0], [1] * 5, [1] * 5]
    assert part.lengths == [1, 5, 5]


@pytest.fixture
def mps_state(monkeypatch):
    """The random state of an Apple GPU, which this machine need not have: a list with one number."""
    state = [7]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.tensor(state))
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda new_state: state.__setitem__(0, int(new_state)))
    monkeypatch.setattr(torch.mps, "manual_seed", lambda seed: state.__setitem__(0, seed))
    return state


def test_the_random_state_of_an_apple_gpu_is_replayed_and_restored(mps_state):
    random_state = RandomState(torch.device("mps"))
    mps_state[0] = 8  # as a forward pass with dropout does
    expected = torch.get_rng_state()
    with random_state.replayed():
        assert mps_state == [7]
        mps_state[0] = 9
        torch.rand(1)
    assert mps_state == [8]
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_seed_leaves_the_random_state_of_an_apple_gpu_as_it_was(mps_state):
    with pytest.raises(ZeroDivisionError), seeded(3, torch.device("mps")):
        mps_state[0] = 9
        1 / 0  # noqa: B018
    assert mps_state == [7]


def test_a_seed_draws_the_same_numbers_and_restores_the_state():
    torch.manual_seed(1)
    expected = torch.get_rng_state()
    draws = []
    for _ in range(2):
        with seeded(3, torch.device("cpu")):
            draws.append(torch.rand(4))
    assert torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), expected)
