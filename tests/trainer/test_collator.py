"""From rows to tensors: whole batches, and the parts of processes that share one."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cde_hf import BatchPlan, FalseNegativeFilter, Prompts
from cde_hf.modeling.sentence_transformers_cde import CDETransformer
from cde_hf.trainer.collator import ContextDraw, ContrastiveCollator


ROWS = [3, 11, 19, 27, 35, 43]


@pytest.fixture(params=[0, 2], ids=["pairs", "hard negatives"])
def collate(request, tiny, plan_folder, negatives_plan_folder):
    """Function that makes the inputs of one of several processes."""
    pairs = tiny.make_pairs(num_negatives=request.param)
    plan = BatchPlan.load(negatives_plan_folder if request.param else plan_folder)

    def run(rows=ROWS, num_processes=1, process_index=0, **options):
        collator = ContrastiveCollator(
            pairs,
            tiny.make_tokenizer(),
            FalseNegativeFilter(plan),
            context_draw=ContextDraw(plan, 4),
            max_length=40,
            num_processes=num_processes,
            process_index=process_index,
            **options,
        )
        return collator(rows)

    run.pairs = pairs
    run.plan = plan
    return run


def decoded(tiny, inputs, name="input_ids"):
    return tiny.make_tokenizer().batch_decode(inputs[name], skip_special_tokens=True)


def test_texts_come_with_their_prompts(tiny, collate):
    pairs = collate.pairs
    texts = decoded(tiny, collate(prompts=Prompts(query="search_query : ", document="search_document : ")))
    assert texts[:6] == [f"search_query : {pairs[row]['query']}" for row in ROWS]
    assert texts[6:12] == [f"search_document : {pairs[row]['document']}" for row in ROWS]


def test_processes_read_the_parts_of_one_batch(collate):
    whole, parts = collate(), [collate(num_processes=3, process_index=index) for index in range(3)]
    assert [part["num_queries"] for part in parts] == [2, 2, 2]
    torch.testing.assert_close(torch.cat([part["left_out"] for part in parts]), whole["left_out"])
    assert all(part["context_rows"] == whole["context_rows"] for part in parts)
    assert all(part["rows"] == ROWS for part in parts)
    assert {tuple(part["negative_counts"]) for part in parts} == {tuple(parts[0]["negative_counts"])}
    assert sum(parts[0]["negative_counts"]) == whole["negative_counts"][0]
    assert np.mean([part["hardness"] for part in parts]) == pytest.approx(whole["hardness"], abs=1e-6)
    assert whole["left_out"].any()


def test_context_documents_are_those_of_the_drawn_rows(tiny, collate):
    inputs = collate()
    documents = decoded(tiny, inputs, "context_input_ids")
    pairs = collate.pairs
    assert all(pairs[row]["document"] in text for row, text in zip(inputs["context_rows"], documents, strict=True))


@pytest.mark.parametrize("prefix", ["", "context_"])
def test_lengths_are_counted_on_the_cpu(collate, prefix):
    inputs = collate()
    lengths = inputs[f"{prefix}lengths"]
    assert lengths == inputs[f"{prefix}attention_mask"].sum(dim=1).tolist()
    assert all(type(length) is int for length in lengths)
    assert len(set(lengths)) > 1


@pytest.mark.parametrize("filters", [True, False])
def test_the_surrogate_scores_a_batch_once(collate, filters, monkeypatch):
    array, reads = collate.plan.filter_queries, []
    monkeypatch.setattr(BatchPlan, "filter_queries", property(lambda plan: reads.append(plan) or array))
    collate(filters=filters)
    assert len(reads) == 1


def test_without_the_filter_only_known_answers_are_left_out(collate):
    inputs = collate(filters=False)
    pairs, rows = collate.pairs, inputs["rows"]
    answers = {(pair["query"], pair["document"]) for pair in pairs}
    left_out = inputs["left_out"][:, : len(rows)]
    for place, query in enumerate(rows):
        known = [(pairs[query]["query"], pairs[row]["document"]) in answers and row != query for row in rows]
        assert left_out[place].tolist() == known


def test_a_batch_of_one_pair_has_no_negatives(collate):
    inputs = collate(rows=[5])
    assert (inputs["hardness"], inputs["filtered_share"]) == (0.0, 0.0)


@pytest.fixture
def byte_tokenizer():
    """A tokenizer for which a blank is a token, as it is for BPE."""
    characters = ["[PAD]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(characters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")


def test_texts_are_read_as_encode_reads_them(tiny, byte_tokenizer, negatives_plan_folder):
    pairs = Dataset.from_list([{"query": " what\n", "document": "\ta dog ", "negatives": [" a cat "]}] * 2)
    plan = BatchPlan.load(negatives_plan_folder)
    draw = ContextDraw(plan, 4, source="batch")
    collator = ContrastiveCollator(pairs, byte_tokenizer, FalseNegativeFilter(plan), context_draw=draw, filters=False)
    inputs = collator([0, 1])
    module = CDETransformer(tiny.make_model(), byte_tokenizer)
    for name, row, text in (
        ("input_ids", 0, module.preprocess([" what\n"], prompt="search_query: ")),
        ("input_ids", 2, module.preprocess(["\ta dog "], prompt="search_document: ")),
        ("input_ids", 4, module.preprocess([" a cat "], prompt="search_document: ")),
        ("context_input_ids", 0, module.preprocess(["\ta dog "], prompt="search_document: ")),
    ):
        mask = inputs[name.replace("input_ids", "attention_mask")][row].bool()
        assert inputs[name][row][mask].tolist() == text["input_ids"][0].tolist()
