"""
Vectors of checkpoints that were saved once and are kept in `fixtures/golden`: they must never change silently.

`python tests/test_golden_vectors.py` saves them again. Do that only if a change of the numbers is meant, and say so in
the changelog.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, BertConfig, BertTokenizerFast

from cde_hf import CDEConfig, CDEModel, Context, Prompts, contextualize, set_context
from cde_hf.contextual_models import find_cde_model, find_contextual_module
from cde_hf.modeling import corpus_part, frequency_pooling, sentence_transformers_cde
from cde_hf.modeling.context import ship_code
from cde_hf.saving import save_biencoder, save_checkpoint, save_with_context


FOLDER = Path(__file__).parent / "fixtures" / "golden"
KINDS = ("joint", "prefix", "biencoder", "contextualized")
CORPUS = [
    "the cat sleeps on the warm sofa",
    "the dog barks at the moon",
    "the wolf howls at the moon by night",
    "the whale sings in the deep sea",
    "the owl hunts mice by night",
    "mice fear the cat and the owl",
]
TEXTS = ["the dog and the cat", "night", "an unknown word", "", "the deep sea " * 8]
SETTINGS = {"show_progress_bar": False, "batch_size": 2}


def vectors_of(model):
    """The vectors that a user can get of a checkpoint, by name."""
    found = {
        "saved": model.encode(TEXTS, **SETTINGS),
        "query": model.encode_query(TEXTS, **SETTINGS),
        "document": model.encode_document(TEXTS, **SETTINGS),
    }
    if find_contextual_module(model) is not None:
        set_context(model, Context())
        found["without context"] = model.encode(TEXTS, **SETTINGS)
    if find_cde_model(model) is not None:  # its first stage encodes another context
        set_context(model, CORPUS[:2])
        found["another context"] = model.encode(TEXTS, **SETTINGS)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_vectors_of_a_saved_checkpoint_do_not_change(kind, tmp_path):
    shutil.copytree(FOLDER / kind, tmp_path / kind)
    for module in (sentence_transformers_cde, frequency_pooling, corpus_part):  # the code of today
        ship_code(module.__file__, tmp_path / kind)
    expected = json.loads((FOLDER / f"{kind}.json").read_text())
    found = vectors_of(load(tmp_path / kind))
    assert found.keys() == expected.keys()
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, expected[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vectors_of_a_new_checkpoint_are_the_same(kind, tmp_path):
    save(tmp_path)
    expected = json.loads((FOLDER / f"{kind}.json").read_text())
    for name, vectors in vectors_of(load(tmp_path / kind)).items():
        np.testing.assert_allclose(np.abs(vectors), np.abs(expected[name]), atol=1e-4, err_msg=name)


def test_the_numbers_tell_contexts_and_prompts_apart():
    for kind in KINDS:
        vectors = [np.array(values) for values in json.loads((FOLDER / f"{kind}.json").read_text()).values()]
        different = [np.abs(vectors[0] - other).max() for other in vectors[1:]]
        assert max(different) > 1e-2, kind


def load(folder):
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


def save(folder):
    """Saves a tiny checkpoint of each kind."""
    torch.manual_seed(0)
    words = sorted({word for text in CORPUS for word in text.split()} | set("abcdefghijklmnopqrstuvwxyz_:"))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "search", "query", "document"]
    tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(vocabulary)})
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    backbone = BertConfig(
        vocab_size=len(vocabulary), max_position_embeddings=32, initializer_range=0.3, pad_token_id=0, **sizes
    )
    settings = {
        "first_stage_config": backbone.to_dict(),
        "second_stage_config": backbone.to_dict(),
        "context_size": 4,
        "num_soft_prompts": 2,
        "pooling": "context_frequency",
        "initializer_range": 0.3,
    }
    model = CDEModel(CDEConfig(context_attention="joint", separate_context=False, **settings))
    save_checkpoint(model, tokenizer, folder / "base", prompts=Prompts(), max_length=24)
    joint = load(folder / "base")
    set_context(joint, CORPUS)
    save_with_context(joint, folder / "joint")
    encoder = AutoModel.from_config(backbone).eval()
    save_biencoder(encoder, tokenizer, folder / "biencoder", prompts=Prompts(), max_length=24)
    contextualize(load(folder / "biencoder"), CORPUS, corpus_dim=4).save(str(folder / "contextualized"))
    model = CDEModel(CDEConfig(context_attention="prefix", **settings))
    for weights in model.parameters():
        if not weights.any():  # as if they had been trained
            torch.nn.init.normal_(weights, std=0.3)
    save_checkpoint(model, tokenizer, folder / "base", prompts=Prompts(), max_length=24)
    save_with_context(contextualize(load(folder / "base"), CORPUS, corpus_dim=4), folder / "prefix")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    save(target)
    shutil.rmtree(target / "base")
    for each in KINDS:
        golden = vectors_of(load(target / each))
        rounded = {name: np.round(vectors.astype(float), 7).tolist() for name, vectors in golden.items()}
        (target / f"{each}.json").write_text(json.dumps(rounded) + "\n")
        for path in [*(target / each).glob("*.py"), target / each / "manifest.json"]:
            path.unlink()
