"""The attention implementation of a model whose user asked for none, with stand-ins for a GPU and its kernels."""

import pytest
import torch

from cde_hf import CDEModel
from cde_hf.modeling import attention_choice
from cde_hf.modeling.attention_choice import best_attention


CUDA = torch.device("cuda", 0)
HALF, FULL = torch.bfloat16, torch.float32


@pytest.fixture
def gpu(monkeypatch):
    """An Ampere GPU with flash-attention and triton installed; fields can be changed by name."""

    def make(has_flash=True, has_triton=True, capability=(8, 0)):
        monkeypatch.setattr(attention_choice, "is_flash_attn_2_available", lambda: has_flash)
        monkeypatch.setattr(attention_choice, "is_triton_available", lambda: has_triton)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return make


@pytest.fixture
def half_precision_runs_flash(monkeypatch):
    """A CPU for which there is a flash-attention kernel in half precision."""
    monkeypatch.setattr(attention_choice, "runs_flash_attention", lambda device, dtype: dtype == HALF)


@pytest.fixture
def all_run_flash(monkeypatch):
    """A CPU for which there is a flash-attention kernel in every precision, so that numbers can be compared."""
    monkeypatch.setattr(attention_choice, "runs_flash_attention", lambda device, dtype: True)


def choose(model, device=CUDA, dtype=HALF, *, stage="second", is_training=False):
    config = getattr(model.config, f"{stage}_stage_config")
    return best_attention(config, device, dtype, shows_context=stage == "second", is_training=is_training)


def chosen(stage):
    return stage.backbone.config._attn_implementation.rpartition("chosen_")[2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["nomic_bert", "bert"])
def test_a_gpu_in_half_precision_runs_flash_attention(make_model, gpu, family, dtype):
    gpu()
    assert choose(make_model(family), dtype=dtype) == "flash_attention_2"
    assert choose(make_model(family), dtype=dtype, stage="first") == "flash_attention_2"


@pytest.mark.parametrize(
    ("changes", "device", "dtype"),
    [
        ({}, CUDA, FULL),
        ({}, torch.device("cpu"), HALF),
        ({"has_flash": False}, CUDA, HALF),
        ({"capability": (7, 5)}, CUDA, HALF),
    ],
    ids=["float32", "cpu", "not installed", "old gpu"],
)
def test_sdpa_runs_where_flash_attention_cannot(make_model, gpu, changes, device, dtype):
    gpu(**changes)
    assert choose(make_model(), device, dtype) == "sdpa"


def test_local_layers_see_the_context_by_flex_attention(make_model, gpu):
    gpu()
    model = make_model("modernbert")
    assert choose(model) == choose(model, dtype=FULL) == "flex_attention"
    assert choose(model, stage="first") == "flash_attention_2"  # which has no context


def test_local_layers_run_sdpa_where_flex_attention_cannot(make_model, gpu):
    model = make_model("modernbert")
    gpu(has_triton=False)
    assert choose(model) == "sdpa"
    gpu()
    model.config.second_stage_config.attention_dropout = 0.1
    assert (choose(model, is_training=True), choose(model)) == ("sdpa", "flex_attention")


def test_a_cpu_runs_sdpa(make_model, texts, context_documents):
    model = make_model(context_attention="prefix")
    model(*texts, *context_documents)
    assert chosen(model.first_stage_model) == chosen(model.second_stage_model) == "sdpa"


@pytest.mark.parametrize("mode", ["joint", "prefix"])
@pytest.mark.parametrize(
    "stages", [("nomic_bert", "nomic_bert"), ("bert", "bert"), ("modernbert", "nomic_bert")], ids="-".join
)
def test_the_choice_does_not_change_the_numbers(make_model, texts, context_documents, request, stages, mode):
    model = make_model(*stages, context_attention=mode)
    expected = model(*texts, *context_documents).embeddings
    calls = request.getfixturevalue("flash_kernel")
    request.getfixturevalue("all_run_flash")
    embeddings = model(*texts, *context_documents).embeddings
    assert len(calls) == (9 if mode == "prefix" else 6)  # three layers for the documents, the block and the texts
    torch.testing.assert_close(embeddings, expected, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("half_precision_runs_flash")
def test_a_cast_model_chooses_again(make_model, texts, flash_kernel):
    model = make_model()
    model.encode_texts(*texts)
    assert (chosen(model.second_stage_model), len(flash_kernel)) == ("sdpa", 0)
    model.to(HALF).encode_texts(*texts)
    assert (chosen(model.second_stage_model), len(flash_kernel)) == ("flash_attention_2", 3)
    model.to(FULL).encode_texts(*texts)
    assert (chosen(model.second_stage_model), len(flash_kernel)) == ("sdpa", 3)


@pytest.mark.usefixtures("half_precision_runs_flash")
@pytest.mark.parametrize("mode", ["joint", "prefix"])
def test_autocast_counts_as_half_precision(make_model, texts, context_documents, flash_kernel, mode):
    model = make_model(context_attention=mode)
    expected = model(*texts, *context_documents).embeddings
    with torch.autocast("cpu", dtype=HALF):
        embeddings = model(*texts, *context_documents).embeddings
    assert set(flash_kernel) == {HALF}
    assert torch.cosine_similarity(embeddings.float(), expected).min() > 0.98


@pytest.mark.usefixtures("all_run_flash")
@pytest.mark.parametrize("wish", ["sdpa", "eager"])
def test_the_users_wish_wins(make_model, texts, context_documents, tmp_path, flash_kernel, wish):
    make_model(context_attention="prefix").save_pretrained(tmp_path)
    loaded = CDEModel.from_pretrained(tmp_path, attn_implementation=wish)
    loaded(*texts, *context_documents)
    changed = CDEModel.from_pretrained(tmp_path)
    changed.set_attn_implementation(wish)
    changed(*texts, *context_documents)
    assert not flash_kernel
    CDEModel.from_pretrained(tmp_path)(*texts, *context_documents)
    assert flash_kernel


@pytest.mark.usefixtures("all_run_flash")
def test_a_wish_for_one_stage_leaves_the_other_its_choice(make_model, texts, context_documents, flash_kernel):
    model = make_model()
    model.set_attn_implementation({"first_stage_config": "eager"})
    model(*texts, *context_documents)
    assert len(flash_kernel) == 3
    assert model.first_stage_model.backbone.config._attn_implementation == "eager"


@pytest.mark.usefixtures("all_run_flash")
def test_a_model_of_the_same_configuration_has_the_same_choice(make_model, texts, flash_kernel):
    model = make_model()
    model.encode_texts(*texts)
    CDEModel(model.config).eval().encode_texts(*texts)
    assert len(flash_kernel) == 6
    assert "chosen" not in model.config.to_json_string()
