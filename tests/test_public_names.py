"""The names that users import. A change here is a change of the interface."""

import ast
from pathlib import Path

import pytest

import cde_hf


PUBLIC_NAMES = [
    "BM25",
    "BatchPlan",
    "CDEConfig",
    "CDEEmbedder",
    "CDEModel",
    "CDEOutput",
    "CardFacts",
    "ClusteredBatchSampler",
    "ContextBlock",
    "ContextualContrastiveTrainer",
    "ContextualTrainingArguments",
    "ContextualIndex",
    "CorpusContext",
    "Drift",
    "EncodedCorpus",
    "Evaluation",
    "FalseNegativeFilter",
    "FrequencyPoolingEmbedder",
    "GradientCache",
    "KMeansSettings",
    "PairSource",
    "Prompts",
    "QdrantIndex",
    "RetrievalSet",
    "SearchHit",
    "SentenceTransformerEmbedder",
    "SentenceTransformerSurrogate",
    "TfidfSurrogate",
    "VectorOrigin",
    "batch_statistics",
    "check_pairs",
    "cluster_pairs",
    "context_report",
    "contextualize",
    "docstring_pairs",
    "docstring_split",
    "encode_corpus",
    "evaluate",
    "filtered_info_nce",
    "export_onnx",
    "find_last_checkpoint",
    "format_statistics",
    "load_corpus",
    "load_documents",
    "load_pairs",
    "load_retrieval_set",
    "load_sources",
    "make_model_card",
    "make_model_meta",
    "model_path",
    "prepare_batch_plan",
    "relaunch_on_cpus",
    "push_to_hub",
    "retrieval_set_from_pairs",
    "run_training",
    "sample_documents",
    "save_biencoder",
    "save_checkpoint",
    "save_retrieval_set",
    "save_with_context",
    "sentence_transformers_batch_sampler",
    "vector_origin",
    "write_inspection_page",
]


def test_the_public_names_are_these():
    assert sorted(cde_hf.__all__) == sorted(PUBLIC_NAMES)


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
