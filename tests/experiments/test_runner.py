"""Runs are kept by what they depend on, go on where they stopped, and are not trained twice."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from cde_hf import ContextualContrastiveTrainer
from experiments.runner import scoring
from experiments.runner.config import RunConfig, meaning_of
from experiments.runner.experiment import Setting
from experiments.runner.scoring import score_model
from experiments.runner.sets import EvaluationConfig, load_sets
from experiments.runner.sweep import sweep
from experiments.runner.training import is_trained, load_model, read_training, train_run
from experiments.runner.workspace import Workspace


@pytest.fixture
def count_steps(monkeypatch):
    """A list that grows by one with each training step; the step of a number can be made to fail."""
    steps, failing = [], []
    compute_loss = ContextualContrastiveTrainer.compute_loss

    def counted(self, *args, **kwargs):
        steps.append(len(steps) + 1)
        if steps[-1] in failing:
            raise KeyboardInterrupt
        return compute_loss(self, *args, **kwargs)

    monkeypatch.setattr(ContextualContrastiveTrainer, "compute_loss", counted)
    return steps, failing


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"architecture": "joint"},
        {"cluster_size": 8},
        {"domains": ("zoo", "farm")},
        {"layers": 2},
        {"filter_relative_margin": 0.0},
        {"mined_negatives": 1},
    ],
)
def test_another_run_has_another_folder(workspace, config, change):
    assert workspace.run_folder(replace(config, **change)) != workspace.run_folder(config)
    assert workspace.run_folder(replace(config)) == workspace.run_folder(config)


def test_words_about_the_code_do_not_train_anew():
    code = 'def double(number):\n    """Twice."""\n    return 2 * number\n'
    assert meaning_of(code) == meaning_of("def double(number):  # two times\n\n    return 2 * number\n")
    assert meaning_of(code) != meaning_of(code.replace("2 *", "3 *"))


def test_other_data_make_another_run(workspace, config, write_domain):
    before = workspace.run_folder(config)
    write_domain(workspace.data / "train" / "zoo.jsonl.gz", "A {} eats {} apples.")
    assert Workspace(workspace.runs, workspace.data).run_folder(config) != before


def test_a_trained_run_is_not_trained_again_for_another_evaluation(workspace, config, evaluation, count_steps):
    steps, _ = count_steps
    setting, runs = Setting(workspace, num_seeds=1), {config: {"architecture": "prefix"}}
    rows = sweep(setting, runs, evaluation)
    assert len(steps) == config.steps
    more = sweep(setting, runs, replace(evaluation, contexts=("own", "none", "tales")))
    assert len(steps) == config.steps
    assert {row["context"] for row in rows} == {"own", "foreign", "none"}
    assert {row["context"] for row in more} == {"own", "none", "tales"}
    own = [[row["ndcg@10"] for row in each if row["context"] == "own"] for each in (rows, more)]
    assert own[0] == own[1]


def test_a_context_is_scored_once(workspace, config, evaluation, monkeypatch):
    scored, score = [], scoring._evaluate

    def counted(workspace, system, config):
        scored.append(*config.contexts)
        return score(workspace, system, config)

    monkeypatch.setattr(scoring, "_evaluate", counted)
    folder = train_run(workspace, config)
    score_model(workspace, folder, evaluation, "contextual")
    assert scored == ["own", "foreign", "none"]
    more = replace(evaluation, contexts=("own", "training"), training_domains=("zoo",))
    score_model(workspace, folder, more, "contextual")
    assert scored == ["own", "foreign", "none", "training"]
    other = replace(more, training_domains=("farm",))
    score_model(workspace, folder, other, "contextual")
    score_model(workspace, folder, other, "contextual, frequency-pooled")
    assert scored[4:] == ["training", "own", "training"]


def test_an_interrupted_run_goes_on_where_it_stopped(workspace, config, count_steps, monkeypatch, tmp_path):
    steps, failing = count_steps
    monkeypatch.setattr("experiments.runner.training._SHORTEST_SAVING", 2)
    config = replace(config, steps=4)
    whole = train_run(Workspace(tmp_path / "other_runs", workspace.data), config)
    steps.clear()
    failing.append(4)
    with pytest.raises(KeyboardInterrupt):
        train_run(workspace, config)
    folder = workspace.run_folder(config)
    assert not is_trained(folder)
    train_run(workspace, config)
    assert len(steps) == 4 + 2  # the last two again
    assert is_trained(folder) and not list(folder.glob("checkpoint-*"))
    weights, expected = (load_file(each / "model.safetensors") for each in (folder, whole))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_runs_with_the_same_clusters_share_their_plan(workspace, config):
    plans = [workspace.load_plan(each).folder for each in (config, replace(config, architecture="joint", seed=1))]
    assert plans[0] == plans[1] != workspace.load_plan(replace(config, cluster_size=8)).folder


def test_a_run_tells_how_hard_its_batches_were(workspace, config):
    random, clustered = (
        read_training(train_run(workspace, replace(config, batches=batches))) for batches in ("random", "cluster")
    )
    assert clustered["hardness"] > random["hardness"]


def embed_in(model, context):
    torch.manual_seed(0)
    return model(input_ids=torch.tensor([[5, 6, 7]]), context_input_ids=torch.tensor(context)).embeddings


def test_the_context_never_matters_to_the_control(workspace, config):
    encoder = workspace.load_encoder(config)
    control = load_model(replace(config, architecture="soft_prompt"), encoder).train()
    contextual = load_model(config, encoder).train()
    for model in (control, contextual):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for projection in model.second_stage_model.context_value_projections:  # which start at zero
            torch.nn.init.normal_(projection.weight, std=0.1)
    contexts = [[8, 9], [12, 13]], [[10, 11], [12, 13]]
    assert torch.equal(*(embed_in(control, context[:1]) for context in contexts))
    assert not torch.allclose(*(embed_in(contextual, context) for context in contexts), atol=1e-6)
    assert control.config.num_block_tokens == contextual.config.num_block_tokens


def test_the_control_is_scored_without_a_context_and_a_biencoder_in_three_ways(workspace, config, evaluation):
    runs = {
        replace(config, architecture=architecture): {"architecture": architecture, "pooling": "mean"}
        for architecture in ("soft_prompt", "biencoder")
    }
    rows = sweep(Setting(workspace, num_seeds=1), runs, evaluation)
    ways = {(row["architecture"], row["pooling"], row["context"]) for row in rows}
    assert ways == {
        ("soft_prompt", "mean", "none"),
        ("biencoder", "mean", "none"),
        *(("biencoder", way, "own") for way in ("whitened", "frequency-pooled")),
    }
    assert all(0 <= row["ndcg@10"] <= 100 for row in rows)


def test_sets_are_cut_to_queries_documents_and_length(workspace):
    config = EvaluationConfig(("pets",), max_queries=3, max_documents=5, max_length=4)
    (retrieval_set,) = load_sets(workspace, config)
    assert (len(retrieval_set.queries), len(retrieval_set.corpus)) == (3, 5)
    assert all(text.startswith("A ") and len(text.split()) == 2 for text in retrieval_set.corpus.values())
    assert all(grades.keys() <= retrieval_set.corpus.keys() for grades in retrieval_set.qrels.values())


def test_mistakes_are_named(workspace, config):
    with pytest.raises(ValueError, match="`architecture` is `triencoder`, but must be one of"):
        RunConfig(architecture="triencoder")
    with pytest.raises(ValueError, match="needs a model with a context"):
        RunConfig(architecture="biencoder", pooling="context_frequency")
    with pytest.raises(ValueError, match="`layers` must be between 1 and the encoder's 2, got 3"):
        workspace.load_encoder(replace(config, layers=3))
    with pytest.raises(FileNotFoundError, match="need a folder with `train"):
        Workspace(workspace.runs).run_folder(config)


def test_an_unknown_way_to_use_a_model_is_refused(workspace, config, evaluation):
    with pytest.raises(ValueError, match="cannot be scored as `frequency pooled`. Use one of plain, whitened"):
        score_model(workspace, workspace.load_encoder(config), evaluation, "frequency pooled")
