"""fastembed loads an exported folder, in an environment that has neither this package nor PyTorch."""

import json
import os
import re
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import CDEModel, export_onnx, model_path, save_checkpoint, set_context


PYTHON = Path(os.environ["FASTEMBED_PYTHON"])  # set by `make test-integrations`
PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
BLOCK = textwrap.dedent(re.search(r"\n\n( {4}from fastembed.*?)\n\n\S", PAGE, re.DOTALL)[1])  # it opens `my-onnx`
SCRIPT = f"""
import importlib.util, json, sys
assert not any(map(importlib.util.find_spec, ("torch", "cde_hf", "transformers")))
{BLOCK}
json.dump([vector.tolist() for vector in model.embed(json.load(sys.stdin))], sys.stdout)
"""
TEXTS = ["Who makes noise?", "the moon", "a long text about what sings in the deep sea " * 40]


def embed(folder, dimension):
    command = [PYTHON, "-c", SCRIPT.replace("dim=640", f"dim={dimension}")]
    options = {"input": json.dumps(TEXTS), "capture_output": True, "text": True, "check": False}
    result = subprocess.run(command, cwd=folder.parent, **options)
    assert result.returncode == 0, result.stderr
    return np.array(json.loads(result.stdout))


def truncated(model, texts):
    """Texts of which both parts of an embedding see the same tokens: the graph's corpus part has no longer texts."""
    tokenizer = model.tokenizer
    ids = tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("quantize", [False, True])
def test_a_contextualized_model(model, tmp_path, quantize):
    export_onnx(model, tmp_path / "my-onnx", quantize=quantize)
    vectors = model.encode_document(truncated(model, TEXTS), normalize_embeddings=True)
    given = embed(tmp_path / "my-onnx", 640)
    if quantize:
        assert (given * vectors).sum(axis=1).min() > 0.98
    else:
        np.testing.assert_allclose(given, vectors, atol=1e-4)
    assert np.abs(given[0] - given[1]).max() > 1e-2


@pytest.mark.parametrize("attention", ["prefix", "joint"])
def test_a_cde_checkpoint(corpus, tmp_path, attention):
    path = model_path("minilm")
    network = CDEModel.from_biencoder(path, context_size=4, context_attention=attention)
    save_checkpoint(network, AutoTokenizer.from_pretrained(path), tmp_path / "model", max_length=64)
    model = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    set_context(model, corpus)
    export_onnx(model, tmp_path / "my-onnx")
    vectors = model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(embed(tmp_path / "my-onnx", 384), vectors, atol=1e-4)
