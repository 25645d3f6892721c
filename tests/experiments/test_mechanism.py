"""Whether a model can learn to read its context, on tasks that cannot be solved without it."""

import pytest
import torch

from experiments.mechanism import BATCH_SIZE, CONTEXTS, KINDS, CommonWords, LinkedWords, build_model, learn, report


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


def test_only_the_context_tells_which_words_are_linked():
    domain = LinkedWords().draw(torch.Generator().manual_seed(0))
    assert sorted(domain.context.flatten().tolist()) == list(range(5, 37))
    links = {word: other for pair in domain.context.tolist() for word, other in (pair, pair[::-1])}
    for query, document in zip(domain.queries.tolist(), domain.documents.tolist(), strict=True):
        shared = set(query) & set(document)
        assert len(shared) == 1
        assert {links[word] for word in set(query) - shared} == set(document) - shared


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [CommonWords(), LinkedWords()])
def test_a_model_learns_to_read_its_context(task, kind):
    right = learn(build_model(task, KINDS[kind], seed=0), task, num_steps=4000)
    if "random head" in kind:
        assert right["own"] < 45
    else:
        assert right["own"] >= 70
        assert right["foreign"] <= 40


def test_the_page_says_what_was_learned():
    rows = [
        {"task": task, "model": "prefix", "seed": seed, "step": step, "context": context, "accuracy": value}
        for task in ("common words", "linked words")
        for seed in (0, 1)
        for step, gain in ((10, 0), (20, 50))
        for context, value in zip(CONTEXTS, (30 + gain + seed, 30, 29), strict=True)
    ]
    page = report(rows)
    assert "linked words, prefix: 80.5 ± 0.7 with the own context, 30.0 ± 0.0 with a foreign one" in page.finding
    assert "| common words | prefix | 80.5 ± 0.7 | 30.0 ± 0.0 | 29.0 ± 0.0 |" in page.text
    assert list(page.figures) == ["common_words", "linked_words"]
