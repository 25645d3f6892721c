"""Whether a model can learn to read its context, on tasks that cannot be solved without it."""

import pytest
import torch

from experiments.mechanism import BATCH_SIZE, CONTEXTS, KINDS, CommonWords, build_model, learn, report


@pytest.mark.parametrize("task", [CommonWords(), CommonWords(num_words=200, num_own=3, is_skewed=True)])
def test_only_the_context_tells_which_words_are_common(task):
    domain = task.draw(torch.Generator().manual_seed(0))
    assert domain.queries.shape == domain.documents.shape == (BATCH_SIZE, task.num_in_text + task.num_own)
    common = set(domain.context.unique().tolist())
    for query, document in zip(domain.queries.tolist(), domain.documents.tolist(), strict=True):
        own = set(query) & set(document)
        assert len(own) >= task.num_own
        assert len(set(query)) == len(query)
        assert len(common & set(query)) >= task.num_in_text


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_learns_to_read_its_context(kind):
    right = learn(build_model(CommonWords(), KINDS[kind], seed=0), CommonWords(), num_steps=4000)
    if "random head" in kind:
        assert right["own"] < 45
    else:
        assert right["own"] >= 70
        assert right["foreign"] <= 40


def test_the_page_says_what_was_learned():
    rows = [
        {"task": "7 words of 64", "model": "prefix", "seed": seed, "step": step, "context": context, "accuracy": value}
        for seed in (0, 1)
        for step, gain in ((10, 0), (20, 50))
        for context, value in zip(CONTEXTS, (30 + gain + seed, 30, 29), strict=True)
    ]
    page = report(rows)
    assert "prefix: 80.5 ± 0.7 with the own context, 30.0 ± 0.0 with another domain's" in page.finding
    assert "| 7 words of 64 | prefix | 80.5 ± 0.7 | 30.0 ± 0.0 | 29.0 ± 0.0 |" in page.text
    assert list(page.figures) == ["curves"]
