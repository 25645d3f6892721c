"""Prompts per domain and side."""

import pytest
from datasets import Dataset

from cde_hf.data import Prompts


ROWS = {
    "query": ["a", "b"],
    "document": ["c", "d"],
    "negatives": [["e", "f"], []],
    "domain": ["faq", "intents"],
    "number": [1, 2],
}
PROMPTS = Prompts(domains={"intents": ("classification: ", "topic: ")})


def test_each_domain_has_its_prompts():
    assert PROMPTS.for_domain("intents") == ("classification: ", "topic: ")
    assert PROMPTS.for_domain("faq") == PROMPTS.for_domain(None) == ("search_query: ", "search_document: ")


def test_prompts_go_before_queries_documents_and_negatives():
    assert PROMPTS.apply(ROWS) == {
        "query": ["search_query: a", "classification: b"],
        "document": ["search_document: c", "topic: d"],
        "negatives": [["search_document: e", "search_document: f"], []],
        "domain": ["faq", "intents"],
        "number": [1, 2],
    }
    assert ROWS["query"] == ["a", "b"]


def test_rows_without_domain_get_the_default():
    rows = {"query": ["a"], "document": ["c"]}
    assert PROMPTS.apply(rows) == {"query": ["search_query: a"], "document": ["search_document: c"]}


def test_prompts_apply_to_a_whole_dataset():
    dataset = Dataset.from_dict(ROWS).map(PROMPTS.apply, batched=True, batch_size=1)
    assert dataset[:] == PROMPTS.apply(ROWS)


def test_sentence_transformers_get_all_prompts():
    assert Prompts(query="Q: ", document="").for_sentence_transformers() == {
        "query": "Q: ",
        "document": "",
        "classification": "classification: ",
        "clustering": "clustering: ",
    }


@pytest.mark.parametrize("prompts", ["ab", ("classification: ",)])
def test_a_domain_needs_both_prompts(prompts):
    with pytest.raises(ValueError, match="The domain `intents` must have two prompts, .* Give both"):
        Prompts(domains={"intents": prompts})
