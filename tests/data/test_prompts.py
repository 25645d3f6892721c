"""Prompts of queries and documents."""

from datasets import Dataset

from cde_hf.data import Prompts


ROWS = {
    "query": ["a", "b"],
    "document": ["c", "d"],
    "negatives": [["e", "f"], []],
    "domain": ["faq", "intents"],
    "number": [1, 2],
}


def test_prompts_go_before_queries_documents_and_negatives():
    assert Prompts().apply(ROWS) == {
        "query": ["search_query: a", "search_query: b"],
        "document": ["search_document: c", "search_document: d"],
        "negatives": [["search_document: e", "search_document: f"], []],
        "domain": ["faq", "intents"],
        "number": [1, 2],
    }
    assert ROWS["query"] == ["a", "b"]


def test_rows_need_no_negatives():
    rows = {"query": ["a"], "document": ["c"]}
    assert Prompts().apply(rows) == {"query": ["search_query: a"], "document": ["search_document: c"]}


def test_prompts_apply_to_a_whole_dataset():
    prompts = Prompts(query="Q: ", document="")
    dataset = Dataset.from_dict(ROWS).map(prompts.apply, batched=True, batch_size=1)
    assert dataset[:] == prompts.apply(ROWS)


def test_sentence_transformers_get_only_the_prompts_of_the_training():
    assert Prompts("", "").for_sentence_transformers() == {"query": "", "document": ""}
    assert Prompts().for_sentence_transformers() == {"query": "search_query: ", "document": "search_document: "}
    assert Prompts(clustering="clustering: ").for_sentence_transformers() == {
        "query": "search_query: ",
        "document": "search_document: ",
        "clustering": "clustering: ",
    }
