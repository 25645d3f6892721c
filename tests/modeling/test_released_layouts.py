"""Checkpoints in the released layouts against the numbers of the original implementation."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModel

from cde_hf import CDEConfig, CDEModel
from cde_hf.trainer import GradientCache, filtered_info_nce
from cde_hf.trainer.step import Encoder, MiniBatchSize, Step, Texts


GENERATIONS = ["cde-v1-tiny", "cde-v2-tiny"]


@pytest.fixture(params=GENERATIONS)
def released(request, fixtures):
    """Model, inputs and expected numbers of one generation."""
    folder = fixtures / request.param
    model, report = CDEModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    if request.param == "cde-v1-tiny":
        expected = load_file(folder / "expected_variants.safetensors")
        expected = {name.removeprefix("training."): v for name, v in expected.items() if name.startswith("training.")}
    else:
        expected = load_file(folder / "expected.safetensors")
    return model, load_file(folder / "inputs.safetensors"), expected


def embed(model, inputs, side, context):
    with torch.no_grad():
        return model.second_stage_model(
            input_ids=inputs[f"{side}_input_ids"],
            attention_mask=inputs[f"{side}_attention_mask"],
            dataset_embeddings=context,
        )


def assert_same(embeddings, expected):
    torch.testing.assert_close(embeddings, expected, atol=3e-5, rtol=0)
    torch.testing.assert_close(F.normalize(embeddings), F.normalize(expected), atol=1e-5, rtol=0)


def test_first_stage(released):
    model, inputs, expected = released
    with torch.no_grad():
        context = model.first_stage_model(
            input_ids=inputs["context_input_ids"], attention_mask=inputs["context_attention_mask"]
        )
    assert_same(context, expected["first_stage"])


@pytest.mark.parametrize(("side", "name"), [("document", "documents"), ("query", "queries")])
def test_second_stage(released, side, name):
    model, inputs, expected = released
    assert_same(embed(model, inputs, side, expected["first_stage"]), expected[name])


def test_without_context(released):
    model, inputs, expected = released
    assert_same(embed(model, inputs, "document", None), expected["documents_null"])


def test_a_permuted_context(released):
    model, inputs, expected = released
    context = expected["first_stage"][inputs["context_permutation"]]
    assert_same(embed(model, inputs, "document", context), expected["documents_context_permuted"])


def test_generation_2_with_the_instruction_in_the_mean(fixtures):
    folder = fixtures / "cde-v2-tiny"
    model = CDEModel.from_pretrained(folder)
    inputs, expected = load_file(folder / "inputs.safetensors"), load_file(folder / "expected.safetensors")
    assert model.config.instruction_end_id == inputs["pool_instruction_end_id"]
    model.config.instruction_end_id = None
    for side, name in (("document", "documents"), ("query", "queries")):
        assert_same(embed(model, inputs, side, expected["first_stage"]), expected[f"keep_instruction.{name}"])


def test_the_eager_attention_gives_the_same_numbers(released):
    model, inputs, expected = released
    model.set_attn_implementation("eager")
    assert_same(embed(model, inputs, "document", expected["first_stage"]), expected["documents"])


def test_saved_in_our_layout_it_is_the_same_model(released, tmp_path):
    model, inputs, expected = released
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "cde"
    assert set(load_file(tmp_path / "model.safetensors")) == set(model.state_dict())
    loaded, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_same(embed(loaded, inputs, "document", expected["first_stage"]), expected["documents"])


def loss_by_autograd(model, data):
    context = model.first_stage_model(data["context_input_ids"], data["context_attention_mask"])
    queries, documents = (
        model.second_stage_model(data[f"{side}_input_ids"], data[f"{side}_attention_mask"], context)
        for side in ("query", "document")
    )
    scores = F.normalize(queries) @ F.normalize(documents).T * data["logit_scale"]
    scores = scores - 1e10 * data["duplicate_labels"]
    labels = data["one_hot_labels"].float()
    return F.cross_entropy(scores, labels / labels.sum(1, keepdim=True))


def loss_by_gradient_cache(model, data):
    """The same by the trainer's own loss and cache, with the mini-batch sizes of the original."""

    def texts(side, length):
        parts = (data[f"{side}_{name}"] for name in ("input_ids", "attention_mask"))
        return [F.pad(part, (0, length - part.shape[1])) for part in parts]

    def with_lengths(input_ids, attention_mask):
        return Texts(input_ids, attention_mask, attention_mask.sum(dim=1).tolist())

    columns = zip(texts("query", 20), texts("document", 20), strict=True)
    step = Step(
        with_lengths(*(torch.cat(column) for column in columns)),
        num_queries=6,
        context_documents=with_lengths(*texts("context", 24)),
    )
    cache = GradientCache(
        Encoder(model, model),
        mini_batch_size=MiniBatchSize(int(data["chunk_size"])),
        context_mini_batch_size=MiniBatchSize(int(data["first_stage_chunk_size"])),
        touch_all=False,
    )

    def loss_function(embeddings):
        scale, left_out = float(data["logit_scale"]), data["duplicate_labels"].bool()
        return filtered_info_nce(embeddings[:6], embeddings[6:], logit_scale=scale, left_out=left_out)

    return cache.compute_loss(step, loss_function).loss


@pytest.mark.parametrize("compute_loss", [loss_by_autograd, loss_by_gradient_cache])
def test_loss_and_gradients_of_a_training_step(fixtures, compute_loss):
    model = CDEModel.from_pretrained(fixtures / "cde-v1-tiny")
    data = load_file(fixtures / "gradcache" / "gradcache.safetensors")
    loss = compute_loss(model, data)
    torch.testing.assert_close(loss.detach(), data["variant_training.loss"], atol=2e-5, rtol=0)

    loss.backward()
    prefix = "variant_training.grad."
    expected = {name.removeprefix(prefix): gradient for name, gradient in data.items() if name.startswith(prefix)}
    assert {name.split(".")[0] for name in expected} == {"first_stage_model", "second_stage_model"}
    for name, gradient in expected.items():
        for ours, part in original_parameters(model, name, gradient):
            scale = gradient.abs().max().item()
            parameter = model.get_parameter(ours)
            assert scale > 0
            torch.testing.assert_close(
                parameter.grad, part, atol=2e-4 * scale, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
            )
    unused = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert unused == {"second_stage_model.null_embedding"}


def original_parameters(model, name, tensor):
    """Our names, and parts, of a parameter of the original."""
    for old, new in (
        ("first_stage_model.embedder", "first_stage_model.backbone"),
        ("first_stage_model.mlp", "first_stage_model.output_projection"),
        ("prompt_projection", "soft_prompt_projection"),
        ("emb_ln", "embeddings.LayerNorm"),
        ("encoder.layers", "layers"),
        ("attn.out_proj", "self_attn.o_proj"),
        ("mlp.fc11", "mlp.up_proj"),
        ("mlp.fc12", "mlp.gate_proj"),
        ("mlp.fc2", "mlp.down_proj"),
        ("norm1", "post_attention_layernorm"),
        ("norm2", "post_mlp_layernorm"),
    ):
        name = name.replace(old, new)
    if "attn.Wqkv" in name:
        projections = [name.replace("attn.Wqkv", f"self_attn.{kind}_proj") for kind in "qkv"]
        return list(zip(projections, tensor.chunk(3), strict=True))
    return [(name, tensor)]


def test_the_released_names_have_built_in_backbones(tmp_path, fixtures):
    for generation, model_type, num_layers in (("cde-v1-tiny", "nomic_bert", 12), ("cde-v2-tiny", "modernbert", 22)):
        folder = tmp_path / generation
        folder.mkdir()
        shutil.copy(fixtures / generation / "config.json", folder)
        config = CDEConfig.from_pretrained(folder)
        for stage in (config.first_stage_config, config.second_stage_config):
            assert (stage.model_type, stage.num_hidden_layers, stage.hidden_size) == (model_type, num_layers, 768)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"transductive_sequence_dropout_prob": 0.0}, lambda config: not config.has_null_embedding),
        ({"limit_layers_first_stage": 1}, lambda config: config.first_stage_config.num_hidden_layers == 1),
        ({"limit_layers": 1}, lambda config: config.second_stage_config.num_hidden_layers == 1),
        ({"pooling_strategy": None, "dataset_backbone": None}, lambda config: config.context_size == 12),
        ({"disable_dropout": False}, lambda config: config.second_stage_config.hidden_dropout_prob == 0.1),
        ({"disable_transductive_rotary_embedding": False}, lambda config: config.context_as_sequence),
    ],
)
def test_fields_of_the_released_configurations(tmp_path, fixtures, change, check):
    assert check(changed_config(tmp_path, fixtures, change))


def test_a_setting_that_no_released_checkpoint_has_is_refused(tmp_path, fixtures):
    with pytest.raises(ValueError, match="`transductive_tokens_per_document=2`, but only the released value 1"):
        changed_config(tmp_path, fixtures, {"transductive_tokens_per_document": 2})


def changed_config(tmp_path, fixtures, change):
    shutil.copytree(fixtures / "cde-v1-tiny", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    return CDEConfig.from_pretrained(tmp_path)
