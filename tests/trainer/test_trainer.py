"""The trainer as its user meets it: what changes, what is logged, what is saved."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from cde_hf import BatchPlan, ContextualContrastiveTrainer, ContextualTrainingArguments, Prompts, RetrievalSet
from cde_hf.processes import check_processes
from cde_hf.saving import save_biencoder
from cde_hf.trainer import trainer as trainer_module
from cde_hf.trainer.evaluation import add_means, make_embedder, score_retrieval_sets


OUTSIDE_OF_BACKBONES = r"stage_model\.(?!backbone)"


@pytest.fixture
def train(tiny, plan_folder, tmp_path):
    """Function that trains two steps and gives the trainer and the names of the parameters that changed."""

    def run(model=None, **arguments):
        model = tiny.make_model() if model is None else model
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        options = {"max_steps": 2, "plan": BatchPlan.load(plan_folder), **arguments}
        trainer = tiny.make_trainer(model, tmp_path / "run", **options)
        trainer.train()
        changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        return trainer, changed

    return run


def all_names(model):
    return {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("kind", ["prefix", "joint", "plain"])
@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_every_parameter_changes(tiny, train, kind, mini_batch_size):
    fields = {} if kind == "plain" else {"sequence_dropout_prob": 0.5}
    model = tiny.make_model(kind, **fields)
    _, changed = train(model, mini_batch_size=mini_batch_size)
    assert changed == all_names(model)


@pytest.mark.parametrize("kind", ["prefix", "joint", "plain"])
def test_dropout_can_be_disabled(tiny, train, kind):
    model = tiny.make_model(kind, dropout=0.5)
    losses = []
    for disable_dropout in (False, True):
        trainer, _ = train(model, disable_dropout=disable_dropout, learning_rate=0.0)
        batch = next(iter(trainer.get_train_dataloader()))
        model.train()
        losses.append({trainer.compute_loss(model, batch).item() for _ in range(4)})
    assert len(losses[0]) == 4
    assert max(losses[1]) == pytest.approx(min(losses[1]), abs=1e-5)


def test_the_loss_goes_down(tiny, train):
    trainer, _ = train(max_steps=40, learning_rate=3e-3, per_device_train_batch_size=16)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_the_log_tells_how_it_goes(train):
    trainer, _ = train(mini_batch_size=4)
    entry = trainer.state.log_history[0]
    assert 0 <= entry["accuracy"] <= 1 <= entry["mean_rank"] <= 8
    assert 0 < entry["hardness"] < 1
    assert 0 < entry["filtered_share"] < 1
    assert entry["tokens_per_second"] > 0
    stages = entry["grad_norm_first_stage"] ** 2 + entry["grad_norm_second_stage"] ** 2
    assert stages**0.5 == pytest.approx(entry["grad_norm"], rel=1e-4)


def test_norms_are_those_before_clipping(train):
    clipped, _ = train(max_grad_norm=1e-3, max_steps=1)
    entry = clipped.state.log_history[0]
    assert entry["grad_norm"] > 1e-2
    stages = entry["grad_norm_first_stage"] ** 2 + entry["grad_norm_second_stage"] ** 2
    assert stages**0.5 == pytest.approx(entry["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "is_expected"),
    [
        ({"bf16": True}, lambda name: True),
        ({"gradient_checkpointing": True}, lambda name: True),
        (
            {"learning_rate": 0.0, "learning_rate_mapping": {OUTSIDE_OF_BACKBONES: 1e-2}},
            lambda name: ".backbone." not in name,
        ),
        pytest.param({"torch_compile": True}, lambda name: True, marks=pytest.mark.slow),
    ],
    ids=["bf16", "gradient checkpointing", "new layers alone", "compiled"],
)
def test_a_feature_changes_what_it_should_and_the_model_loads_again(tiny, train, tmp_path, arguments, is_expected):
    model = tiny.make_model(sequence_dropout_prob=0.5)
    trainer, changed = train(model, mini_batch_size=3, **arguments)
    assert changed == {name for name in all_names(model) if is_expected(name)}
    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModel.from_pretrained(tmp_path / "saved", trust_remote_code=True).state_dict()
    for name, weights in model.state_dict().items():
        assert torch.equal(loaded[name], weights), name


def test_the_learning_rate_warms_up_and_decays_linearly(train):
    trainer, _ = train(max_steps=6, warmup_steps=2, learning_rate=1.0)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.75, 0.5, 0.25])


def test_a_few_steps_with_the_default_schedule_change_the_weights(tiny, train):
    defaults = ContextualTrainingArguments
    model = tiny.make_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, max_steps=3, learning_rate=defaults.learning_rate, warmup_steps=defaults.warmup_steps)
    change = max(
        float((parameter.detach() - before[name]).abs().max()) for name, parameter in model.named_parameters()
    )
    assert change > defaults.learning_rate


@pytest.mark.parametrize(
    ("arguments", "is_warned"),
    [
        ({"warmup_steps": 1000}, True),
        ({"warmup_steps": 2}, True),
        ({"warmup_steps": 0.1, "max_steps": 1}, True),
        ({"warmup_steps": 1}, False),
        ({"warmup_steps": 0, "max_steps": 1}, False),
        ({"warmup_steps": 1000, "lr_scheduler_type": "constant"}, False),
    ],
    ids=str,
)
def test_a_run_that_ends_in_its_warm_up_is_a_warning(train, caplog, arguments, is_warned):
    train(**arguments)
    message = "the learning rate never reaches 0.01, and the model learns little or nothing. Train longer, or lower"
    assert (message in caplog.text) == is_warned


def rates_and_decays(trainer):
    """Learning rate and weight decay of each parameter by name."""
    groups = {id(parameter): group for group in trainer.optimizer.param_groups for parameter in group["params"]}
    found = {name: groups[id(parameter)] for name, parameter in trainer.model.named_parameters()}
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == len(found)
    return {name: (group["initial_lr"], group["weight_decay"]) for name, group in found.items()}


def test_new_layers_have_their_own_learning_rate(train):
    trainer, _ = train(
        learning_rate_mapping={OUTSIDE_OF_BACKBONES: 0.5}, learning_rate=0.25, weight_decay=0.1, max_steps=1
    )
    found = rates_and_decays(trainer)
    assert found.keys() == all_names(trainer.model)
    assert {name for name, (rate, _) in found.items() if rate == 0.25} == {n for n in found if ".backbone." in n}
    assert set(found.values()) == {(0.25, 0.1), (0.25, 0.0), (0.5, 0.1), (0.5, 0.0)}
    assert all(decay == 0.0 for name, (_, decay) in found.items() if name.endswith("bias"))


def test_a_plain_encoder_has_learning_rates_by_name_and_the_last_pattern_counts(tiny, train):
    mapping = {"layers": 0.5, r"layers\.1\.": 0.75}
    trainer, _ = train(tiny.make_model("plain"), learning_rate_mapping=mapping, learning_rate=0.25, max_steps=1)
    for name, (rate, _) in rates_and_decays(trainer).items():
        assert rate == (0.75 if "layers.1." in name else 0.5 if "layers" in name else 0.25), name


def test_a_pattern_that_matches_nothing_is_refused(train):
    with pytest.raises(ValueError, match="has the pattern `third_stage`, which matches no trainable parameter"):
        train(learning_rate_mapping={"third_stage": 0.5})


@pytest.mark.parametrize("stage", ["first_stage_model", "second_stage_model"])
def test_lora_trains_adapters_of_one_stage_alone(tiny, train, tmp_path, stage):
    lora = LoraConfig(r=2, target_modules=rf"{stage}\.backbone\..*\.(q_proj|v_proj)")
    model = get_peft_model(tiny.make_model(), lora)
    trainer, changed = train(model, mini_batch_size=3, save_strategy="steps", save_steps=2)
    assert changed
    assert all(stage in name and "lora_" in name for name in changed)
    assert (tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors").exists()

    trainer.save_model(str(tmp_path / "merged"))
    loaded = AutoModel.from_pretrained(tmp_path / "merged", trust_remote_code=True)
    ids = torch.randint(4, 100, (2, 7))
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.model(input_ids=ids, context_input_ids=ids).embeddings
        torch.testing.assert_close(loaded(input_ids=ids, context_input_ids=ids).embeddings, expected)


def gradients_of(tiny, tmp_path, plan_folder, **arguments):
    return tiny.run(tmp_path, plan_folder=plan_folder, **arguments)[1].gradients[0]


@pytest.mark.parametrize("kind", ["prefix", "joint"])
@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_gradient_checkpointing_gives_the_same_gradients(tiny, tmp_path, plan_folder, kind, mini_batch_size):
    options = {"model": {"kind": kind, "dropout": 0.1}, "mini_batch_size": mini_batch_size}
    expected = gradients_of(tiny, tmp_path, plan_folder, **options)
    found = gradients_of(tiny, tmp_path, plan_folder, gradient_checkpointing=True, **options)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_bfloat16_is_near_float32(tiny, tmp_path, plan_folder, mini_batch_size):
    expected = gradients_of(tiny, tmp_path, plan_folder)
    found = gradients_of(tiny, tmp_path, plan_folder, bf16=True, mini_batch_size=mini_batch_size)
    flat = [torch.cat([part[name].flatten().float() for name in expected]) for part in (expected, found)]
    assert not torch.equal(*flat)
    assert torch.cosine_similarity(*flat, dim=0) > 0.98


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_gradients(tiny, tmp_path, plan_folder):
    expected = gradients_of(tiny, tmp_path, plan_folder, mini_batch_size=8)
    found = gradients_of(tiny, tmp_path, plan_folder, mini_batch_size=8, torch_compile=True)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("source", ["cluster", "batch", "domain", "random"])
def test_contexts_come_from_where_they_should(tiny, train, source):
    trainer, changed = train(context_source=source)
    batch = next(iter(trainer.get_train_dataloader()))
    domains = trainer.batch_plan.domain_ids
    if source == "batch":
        assert set(batch["context_rows"]) <= set(batch["rows"])
    elif source in ("cluster", "domain"):
        assert set(domains[batch["context_rows"]]) == {domains[batch["rows"][0]]}
        assert not set(batch["context_rows"]) <= set(batch["rows"])
    else:
        assert set(domains[batch["context_rows"]]) == {0, 1}


@pytest.mark.parametrize("grouping", ["cluster", "domain", "random"])
def test_batches_are_filled_as_asked(train, grouping):
    trainer, _ = train(batch_grouping=grouping, max_steps=1)
    domains = trainer.batch_plan.domain_ids
    num_domains = {len(set(domains[batch["rows"]])) for batch in trainer.get_train_dataloader()}
    assert (num_domains == {1}) == (grouping != "random")


def test_workers_read_the_same_batches(train):
    trainer, _ = train(max_steps=1)
    alone = [batch["input_ids"].tolist() for batch in trainer.get_train_dataloader()]
    trainer.args.dataloader_num_workers = 2
    assert [batch["input_ids"].tolist() for batch in trainer.get_train_dataloader()] == alone


def test_hard_negatives_alone(tiny, tmp_path):
    pairs = tiny.make_pairs(num_negatives=2)
    plan = tiny.make_plan(pairs, tmp_path / "plan")
    arguments = {"pairs": pairs, "plan": plan, "in_batch_negatives": False, "filter_false_negatives": False}
    trainer = tiny.make_trainer(tiny.make_model("plain"), tmp_path, **arguments)
    batch = trainer.data_collator([0, 1, 2])
    assert batch["left_out"].tolist() == [
        [False, True, True, False, True, True, True],
        [True, False, True, True, False, False, True],
        [True, True, False, True, True, True, False],
    ]
    assert batch["negative_counts"] == [4]


def test_without_in_batch_negatives_there_must_be_hard_ones(train):
    with pytest.raises(
        ValueError,
        match="every pair needs hard negatives, but the data set has no column `negatives`. Add it, or leave",
    ):
        train(in_batch_negatives=False)


@pytest.fixture
def retrieval_sets(tiny):
    pairs = tiny.make_pairs(num_pairs=32, seed=5)
    sets = []
    for name, rows in (("even", range(0, 32, 2)), ("odd", range(1, 32, 2))):
        corpus = {str(row): pairs[row]["document"] for row in rows}
        queries = {str(row): pairs[row]["query"] for row in rows}
        sets.append(RetrievalSet(name, corpus, queries, {row: {row: 1} for row in corpus}))
    return sets


def test_evaluation_shows_own_foreign_and_no_context(train, retrieval_sets):
    trainer, _ = train(eval_dataset=retrieval_sets, eval_strategy="steps", eval_steps=1)
    entries = [entry for entry in trainer.state.log_history if "eval_ndcg@10_own" in entry]
    assert len(entries) == 2
    for context in ("own", "foreign", "none"):
        scores = [entries[-1][f"eval_{name}_ndcg@10_{context}"] for name in ("even", "odd")]
        assert entries[-1][f"eval_ndcg@10_{context}"] == pytest.approx(sum(scores) / 2)
    assert trainer.model.training


def test_a_failed_evaluation_leaves_the_model_in_training_mode(train, retrieval_sets, monkeypatch):
    trainer, _ = train(eval_dataset=retrieval_sets)
    trainer.model.train()
    monkeypatch.setattr(trainer_module, "score_retrieval_sets", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate()
    assert all(module.training for module in trainer.model.modules())


def test_the_loss_comes_with_its_outputs_on_request(train):
    trainer, _ = train(max_steps=1)
    batch = next(iter(trainer.get_train_dataloader()))
    loss, output = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    assert loss == output.loss
    assert 0 <= output.accuracy <= 1


def test_a_biencoder_is_evaluated_once(tiny, train, retrieval_sets):
    trainer, _ = train(tiny.make_model("plain"), eval_dataset=retrieval_sets)
    metrics = trainer.evaluate()
    assert set(metrics) - {"epoch"} == {"eval_ndcg@10", "eval_even_ndcg@10", "eval_odd_ndcg@10"}


def test_evaluation_equals_that_of_the_saved_checkpoint(train, retrieval_sets, tmp_path):
    from cde_hf import ContextualModelEmbedder, evaluate
    from cde_hf.evaluation import Row

    trainer, _ = train(eval_dataset=retrieval_sets)
    metrics = trainer.evaluate()
    trainer.save_model(str(tmp_path / "saved"))
    model = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    model[0].set_context(None)
    evaluation = evaluate(
        [ContextualModelEmbedder(model, "ours")], retrieval_sets, contexts=("own", "none"), context_size=6, seed=42
    )
    for context in ("own", "none"):
        expected = evaluation.mean(Row("ours", context))
        assert metrics[f"eval_ndcg@10_{context}"] == pytest.approx(expected, abs=1e-6)


def test_processes_share_the_sets(tiny, retrieval_sets):
    model = tiny.make_model().eval()
    embedder = make_embedder(model, tiny.make_tokenizer(), prompts=Prompts(), max_length=16, batch_size=8)
    options = {"context_size": 6, "seed": 1}
    whole = score_retrieval_sets(embedder, retrieval_sets, **options)
    assert set(whole) == {(name, context) for name in ("even", "odd") for context in ("own", "foreign", "none")}
    parts = [
        score_retrieval_sets(embedder, retrieval_sets, process_index=i, num_processes=2, **options) for i in (0, 1)
    ]
    assert len(parts[0]) == len(parts[1]) == 3 and parts[0] | parts[1] == whole


def test_means_are_over_sets_of_the_same_context():
    scores = {("none", "own"): 0.25, ("none", "none"): 0.0, ("x_ndcg@10_own", "own"): 0.75}
    assert add_means(scores) == {
        "ndcg@10_own": 0.5,
        "ndcg@10_none": 0.0,
        "none_ndcg@10_own": 0.25,
        "none_ndcg@10_none": 0.0,
        "x_ndcg@10_own_ndcg@10_own": 0.75,
    }


def test_there_must_be_something_to_evaluate_on(train):
    trainer, _ = train()
    with pytest.raises(ValueError, match="give the trainer retrieval sets as `eval_dataset`"):
        trainer.evaluate()


def test_the_model_loads_with_automodel_and_sentence_transformers(train, tmp_path):
    trainer, _ = train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModel.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    for name, weights in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weights), name
    model = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    model[0].set_context(["t0w1 t0w2", "t1w1 t1w2"])
    assert model.encode(["t0w1"]).shape == (1, 16)
    saved = {path.suffix for path in (tmp_path / "saved").iterdir()}
    assert not saved & {".bin", ".pt", ".pth", ".pkl"}


def test_a_biencoder_loads_with_sentence_transformers(tiny, train, tmp_path):
    trainer, _ = train(tiny.make_model("plain"))
    trainer.save_model(str(tmp_path / "saved"))
    model = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert model.prompts["query"] == "search_query: "
    tokens = trainer.processing_class(["t0w1 t0w2"], return_tensors="pt")
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.model(**tokens).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(torch.from_numpy(model.encode(["t0w1 t0w2"])), expected, atol=1e-5, rtol=1e-5)


def test_a_broken_loss_names_the_batch(tiny, train, tmp_path, monkeypatch):
    compute = trainer_module.filtered_info_nce
    monkeypatch.setattr(
        trainer_module, "filtered_info_nce", lambda *a, **k: compute(*a, **{**k, "logit_scale": torch.nan})
    )
    with pytest.raises(ValueError, match="The loss is nan at step 1, in a batch of 8 pairs of domain `(news|forum)`"):
        train()
    record = json.loads((tmp_path / "run" / "bad_batch_step_1_process_0.json").read_text())
    assert len(record["rows"]) == 8
    assert record["domain"] in ("news", "forum")


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_that_accelerate_does_not_know_of_are_refused(name):
    with pytest.raises(RuntimeError, match=f"4 processes were launched .`{name}`., but accelerate reports one"):
        check_processes(1, {name: "4"})
    check_processes(4, {name: "4"})
    check_processes(1, {name: "1"})
    check_processes(1, {})


def test_processes_that_accelerate_did_not_start_are_noticed():
    requested = {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(RuntimeError, match="started only one. Use `torchrun --nproc_per_node N`"):
        check_processes(1, requested)
    check_processes(2, {**requested, "RANK": "0"})
    check_processes(1, {"ACCELERATE_USE_CPU": "True"})


@pytest.fixture
def encoder(tiny, tmp_path):
    """Folder of a tiny encoder with its tokenizer."""
    save_biencoder(tiny.make_model("plain"), tiny.make_tokenizer(), tmp_path / "encoder")
    return tmp_path / "encoder"


def test_a_model_by_name_and_pairs_are_enough(tiny, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = ContextualContrastiveTrainer(model=str(encoder), train_dataset=tiny.make_pairs(num_pairs=600))
    trainer.train()
    assert trainer.state.global_step == 6
    trainer.save_model()
    plan = BatchPlan.load("trainer_output/plan")
    assert (plan.manifest["surrogate"]["kind"], plan.manifest["cluster_size"]) == ("tfidf", 256)
    loaded = SentenceTransformer("trainer_output", trust_remote_code=True, device="cpu")
    assert loaded[0].model.config.pooling == "context_frequency"
    loaded[0].set_context(["t0w1 t0w2"])
    assert loaded.encode(["t0w1"]).shape == (1, 16)


def test_a_new_model_follows_from_the_seed(tiny, encoder, plan_folder, tmp_path):
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)  # what a process did before must not matter
        args = ContextualTrainingArguments(output_dir=str(tmp_path / "run"), seed=seed, use_cpu=True)
        trainer = ContextualContrastiveTrainer(encoder, args, tiny.make_pairs(), plan_folder)
        weights.append(torch.cat([parameter.flatten() for parameter in trainer.model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_checkpoint_is_trained_on_with_its_own_tokenizer(tiny, train, plan_folder, tmp_path):
    trainer, _ = train(tiny.make_model("joint", pooling="mean"))
    trainer.save_model(str(tmp_path / "saved"))
    again = ContextualContrastiveTrainer(tmp_path / "saved", trainer.args, tiny.make_pairs(), plan_folder)
    assert (again.model.config.context_attention, again.model.config.pooling) == ("joint", "mean")
    assert again.processing_class.get_vocab() == tiny.make_tokenizer().get_vocab()
    for name, parameter in again.model.named_parameters():
        assert torch.equal(parameter, trainer.model.get_parameter(name)), name


@pytest.mark.parametrize("kind", [str, Path, BatchPlan.load])
def test_a_plan_may_be_given_by_its_folder(tiny, plan_folder, tmp_path, kind):
    trainer = tiny.make_trainer(tiny.make_model(), tmp_path, plan=kind(plan_folder))
    assert trainer.batch_plan.fingerprint == BatchPlan.load(plan_folder).fingerprint


def test_a_folder_without_a_plan_is_refused(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no batch plan. Make one with `cde-hf prepare DATA"):
        tiny.make_trainer(tiny.make_model(), tmp_path, plan=tmp_path)


def test_a_trainer_needs_pairs(encoder):
    with pytest.raises(ValueError, match="nothing to train on: give the trainer pairs as `train_dataset`"):
        ContextualContrastiveTrainer(encoder)


def test_a_model_needs_its_tokenizer(tiny):
    with pytest.raises(ValueError, match="is a CDEModel without a tokenizer. Give the tokenizer as"):
        ContextualContrastiveTrainer(tiny.make_model(), train_dataset=tiny.make_pairs())


@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_training_uses_the_mean_and_the_checkpoint_its_own_pooling(tiny, train, tmp_path, mini_batch_size):
    models = {pooling: tiny.make_model("prefix", pooling=pooling) for pooling in ("mean", "context_frequency")}
    for model in models.values():
        trainer, changed = train(model, mini_batch_size=mini_batch_size)
        assert changed
    for name, parameter in models["mean"].named_parameters():
        assert torch.equal(models["context_frequency"].get_parameter(name), parameter), name
    trainer.save_model(str(tmp_path / "saved"))
    saved = AutoModel.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    assert saved.config.pooling == "context_frequency"
    ids = torch.randint(4, 100, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        by_mean = models["mean"].eval()(input_ids=ids, context_input_ids=ids).embeddings
        assert (saved(input_ids=ids, context_input_ids=ids).embeddings - by_mean).abs().max() > 1e-3


def test_a_plan_of_other_data_is_refused(tiny, plan_folder, tmp_path):
    with pytest.raises(ValueError, match="was made for other data"):
        tiny.make_trainer(tiny.make_model(), tmp_path, pairs=tiny.make_pairs(seed=9), plan=BatchPlan.load(plan_folder))
    with pytest.raises(ValueError, match="has hard negatives, but the batch plan `.*` was made without"):
        tiny.make_trainer(
            tiny.make_model(),
            tmp_path,
            pairs=tiny.make_pairs().map(lambda row: {"negatives": ["t0w1"]}),
            plan=BatchPlan.load(plan_folder),
        )


def test_a_context_that_cannot_be_filled_is_refused(tiny, train):
    with pytest.raises(ValueError, match="A batch has 8 documents for a context of 12, and the model has no null"):
        train(
            tiny.make_model(has_null_embedding=False, context_in_token_space=False, context_size=12),
            context_source="batch",
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, "`temperature` must be positive, got 0.0"),
        ({"mini_batch_size": 0}, "`mini_batch_size` must be an integer of at least 1, got 0"),
        ({"mini_batch_num_tokens": 0}, "`mini_batch_num_tokens` must be an integer of at least 1, got 0"),
        ({"mini_batch_size": 2, "mini_batch_num_tokens": 64}, "both say what fits in memory"),
        (
            {"learning_rate_mapping": "5e-4"},
            "must be a mapping from regular expressions to learning rates, got '5e-4'",
        ),
        ({"context_mini_batch_size": 2}, "belongs to gradient caching, which is off"),
        ({"label_smoothing_factor": 0.1}, "are not supported by this trainer. Leave them out"),
    ],
)
def test_arguments_that_cannot_work_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        ContextualTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **arguments)
