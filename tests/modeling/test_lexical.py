"""The lexical part of embeddings, against bags of words that are counted by hand."""

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cde_hf import CDEModel
from cde_hf.modeling.pooling import draw_signs, lexical_sketch


SCALE, WIDTH = 0.2, 4096


@pytest.fixture
def make_lexical(make_model):
    """Function that builds a tiny model with a wide lexical part, whose noise is small."""

    def make(attention="prefix", **fields):
        fields = {"lexical_size": WIDTH, "lexical_weight": 0.5, "frequency_scale": SCALE, **fields}
        torch.manual_seed(0)
        return make_model(context_attention=attention, **fields)

    return make


def bag_cosines(texts, context_documents):
    """Cosines of bags of tokens: each token once, weighed by the share of context documents that have it."""
    documents = [set(ids[mask.bool()].tolist()) for ids, mask in zip(*context_documents, strict=True)]
    counts = Counter(token for document in documents for token in document)
    bags = np.zeros((len(texts[0]), 100))
    for bag, ids, mask in zip(bags, *texts, strict=True):
        for token in set(ids[mask.bool()].tolist()):
            share = counts[token] / len(documents)
            bag[token] = (1 - share) * SCALE / (SCALE + share)
    bags /= np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1e-9)
    return bags @ bags.T


@pytest.mark.parametrize("attention", ["joint", "prefix"])
def test_the_lexical_part_is_the_bag_of_words(make_lexical, texts, context_documents, attention):
    model = make_lexical(attention)
    embeddings = model.encode_texts(*texts, context=model.encode_context(*context_documents))
    lexical = embeddings[:, model.config.hidden_size :]
    expected = bag_cosines(texts, context_documents)
    assert 0.05 < expected[0, 2] < 0.95
    np.testing.assert_allclose(lexical @ lexical.T / 0.5, expected, atol=0.06)


@pytest.mark.parametrize("attention", ["joint", "prefix"])
@pytest.mark.parametrize("pooling", ["mean", "context_frequency"])
def test_the_dense_part_is_that_of_the_model_without(make_lexical, texts, context_documents, attention, pooling):
    model, plain = (make_lexical(attention, pooling=pooling, lexical_size=size) for size in (WIDTH, 0))
    embeddings, dense = (
        each.encode_texts(*texts, context=each.encode_context(*context_documents)) for each in (model, plain)
    )
    assert (embeddings.shape[1], dense.shape[1]) == (model.config.embedding_size, 32)
    torch.testing.assert_close(embeddings[:, :32], F.normalize(dense, dim=-1))


def test_without_a_context_there_is_no_lexical_part(make_lexical, texts):
    assert not make_lexical().encode_texts(*texts)[:, 32:].any()


def test_another_context_gives_another_lexical_part(make_lexical, texts, context_documents):
    model = make_lexical()
    contexts = [context_documents, tuple(part[:2] for part in context_documents)]
    one, other = (model.encode_texts(*texts, context=model.encode_context(*each))[:, 32:] for each in contexts)
    assert F.cosine_similarity(one, other).min() < 0.98


def test_a_text_is_sketched_alike_in_every_batch(make_lexical, texts, context_documents):
    model = make_lexical()
    context = model.encode_context(*context_documents)
    rows = zip(*texts, strict=True)
    alone = torch.cat([model.encode_texts(ids[mask.bool()][None], context=context) for ids, mask in rows])
    torch.testing.assert_close(model.encode_texts(*texts, context=context), alone, atol=1e-5, rtol=1e-4)


def test_an_instruction_is_left_out_of_the_sketch(make_lexical, context_documents):
    model = make_lexical(instruction_end_id=7)
    context = model.encode_context(*context_documents)
    texts = torch.tensor([[1, 50, 7, 20, 21], [1, 60, 7, 20, 21]])
    one, other = model.encode_texts(texts, context=context)[:, 32:]
    torch.testing.assert_close(one, other)
    assert one.abs().max() > 0


def test_a_repeated_token_counts_once():
    signs = draw_signs(10, 16)
    repeated, once = (
        lexical_sketch(torch.tensor([ids]), torch.ones(1, len(ids)), torch.zeros(10), signs)
        for ids in ([3, 4, 3, 3], [3, 4])
    )
    torch.testing.assert_close(repeated, once)


def test_the_signs_never_change():
    signs = draw_signs(3, 8)
    assert (signs > 0).int().tolist() == [[0, 1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 1, 1, 0]]


def test_it_can_be_added_to_a_saved_model_and_survives_the_disk(make_lexical, texts, context_documents, tmp_path):
    expected = make_lexical()
    make_lexical(lexical_size=0).save_pretrained(tmp_path / "plain")
    fields = {"lexical_size": WIDTH, "lexical_weight": 0.5}
    CDEModel.from_pretrained(tmp_path / "plain", **fields).save_pretrained(tmp_path / "lexical")
    loaded = CDEModel.from_pretrained(tmp_path / "lexical")
    assert loaded.config.lexical_size == WIDTH
    found, wanted = (
        model.encode_texts(*texts, context=model.encode_context(*context_documents)) for model in (loaded, expected)
    )
    torch.testing.assert_close(found, wanted)


def test_a_cast_keeps_the_signs(make_lexical):
    model = make_lexical().to(torch.bfloat16)
    assert "second_stage_model.lexical_signs" not in model.state_dict()
    assert model.second_stage_model.lexical_signs.dtype == torch.int8
    assert set(model.second_stage_model.lexical_signs.unique().tolist()) == {-1, 1}
