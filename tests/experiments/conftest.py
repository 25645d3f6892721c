"""A small world for the runner: two training domains, two retrieval sets, a tiny encoder."""

import gzip
import json

import pytest
from transformers import AutoTokenizer, BertConfig, BertModel

from cde_hf import RetrievalSet, model_path
from cde_hf.data import save_retrieval_set
from cde_hf.saving import save_biencoder
from experiments.runner.config import RunConfig
from experiments.runner.sets import EvaluationConfig
from experiments.runner.workspace import Workspace


ANIMALS = ["cat", "dog", "owl", "cow", "hen", "fox", "bear", "wolf"]
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "nine"]


def write_pairs(path, template):
    # Each pair has a word of its own, for TF-IDF needs more words than dimensions.
    rows = [
        {
            "query": f"{animal} {number} {path.name[:3]}{animal}{number}",
            "document": template.format(animal, f"{number} {path.name[:3]}{animal}{number}"),
        }
        for animal in ANIMALS
        for number in NUMBERS
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def backbone(tmp_path_factory):
    """A BERT of two narrow layers with MiniLM's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(model_path("minilm"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes))
    folder = tmp_path_factory.mktemp("backbone") / "tiny"
    save_biencoder(model, tokenizer, folder, max_length=64)
    return str(folder)


@pytest.fixture
def write_domain():
    """Function that writes a file of pairs from a template."""
    return write_pairs


@pytest.fixture
def workspace(tmp_path):
    data = tmp_path / "data"
    write_pairs(data / "train" / "farm.jsonl.gz", "The {} was sold for {} coins.")
    write_pairs(data / "train" / "zoo.jsonl.gz", "Our {} has {} young ones.")
    for name, template in (("pets", "A {} sleeps at night."), ("tales", "The tale of the old {}.")):
        corpus = {animal: template.format(animal) for animal in ANIMALS}
        queries = {animal: f"Where is the {animal}?" for animal in ANIMALS}
        qrels = {animal: {animal: 1} for animal in ANIMALS}
        save_retrieval_set(RetrievalSet(name, corpus, queries, qrels), data / "eval" / name)
    return Workspace(tmp_path / "runs", data)


@pytest.fixture
def config(backbone):
    """A run of two steps."""
    return RunConfig(
        domains=("farm", "zoo"),
        backbone=backbone,
        layers=1,
        context_size=4,
        cluster_size=16,
        batch_size=8,
        steps=2,
        max_length=16,
        warmup_steps=0,
    )


@pytest.fixture
def evaluation():
    return EvaluationConfig(("pets", "tales"), context_size=4, max_length=16)
