"""transformers' `attn_implementation` of both stages: what can be set, what is refused, and that no run changes it."""

import copy
import pickle

import pytest
import torch
from transformers import AttentionInterface, AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cde_hf import CDEModel


def implementations(model):
    """Names in the configurations of the model and both stages, and in the backbones' own."""
    config, stages = model.config, (model.first_stage_model, model.second_stage_model)
    configs = [config, config.first_stage_config, config.second_stage_config, *(s.backbone.config for s in stages)]
    return [each._attn_implementation for each in configs]


@pytest.fixture
def calls(monkeypatch):
    """The names of transformers' attention functions, in the order in which they are called."""
    names = []
    for name in ("sdpa", "flex_attention"):
        function = ALL_ATTENTION_FUNCTIONS[name]

        def spy(*args, name=name, function=function, **kwargs):
            names.append(name)
            return function(*args, **kwargs)

        monkeypatch.setitem(AttentionInterface._global_mapping, name, spy)
    return names


@pytest.mark.parametrize("family", ["nomic_bert", "modernbert", "bert"])
def test_both_stages_run_sdpa_by_default(make_model, texts, context_documents, calls, family):
    model = make_model(family, context_attention="joint")
    model(*texts, *context_documents)
    assert implementations(model) == ["sdpa"] * 5
    assert calls == ["sdpa"] * 6


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_an_implementation_can_be_named_when_a_checkpoint_is_loaded(
    make_model, texts, context_documents, tmp_path, calls, name
):
    make_model(context_attention="prefix", context_size=3).save_pretrained(tmp_path)
    documents = [tensor[:3] for tensor in context_documents]
    results = []
    for load in (CDEModel.from_pretrained, AutoModel.from_pretrained):
        model = load(tmp_path, attn_implementation=name)
        assert implementations(model) == [name] * 5
        results.append(model(*texts, *documents).embeddings)
    # three layers for the documents, the block, the texts, and the texts again with the block
    assert len(calls) == (24 if name == "sdpa" else 0)
    torch.testing.assert_close(*results, atol=0, rtol=0)


def test_an_implementation_can_be_changed_later(make_model, texts, context_documents, calls):
    model = make_model(context_attention="prefix")
    expected = model(*texts, *context_documents).embeddings
    calls.clear()
    model.set_attn_implementation("eager")
    assert implementations(model) == ["eager"] * 5
    torch.testing.assert_close(model(*texts, *context_documents).embeddings, expected, atol=1e-5, rtol=0)
    assert not calls
    model.set_attn_implementation("sdpa")
    model(*texts, *context_documents)
    assert calls


def test_the_stages_may_have_one_each(make_model, tmp_path):
    model = make_model()
    model.set_attn_implementation({"first_stage_config": "eager"})
    assert implementations(model) == ["sdpa", "eager", "sdpa", "eager", "sdpa"]
    model.save_pretrained(tmp_path)
    loaded = CDEModel.from_pretrained(tmp_path, attn_implementation={"second_stage_config": "eager"})
    assert implementations(loaded)[1:] == ["sdpa", "eager", "sdpa", "eager"]


def test_a_backbone_may_be_set_by_itself(make_model, texts, calls):
    model = make_model(context_attention="prefix")
    expected = model(*texts).embeddings
    calls.clear()
    model.second_stage_model.backbone.set_attn_implementation("eager")
    torch.testing.assert_close(model(*texts).embeddings, expected, atol=1e-5, rtol=0)
    assert not calls


@pytest.mark.parametrize("mode", ["joint", "prefix"])
@pytest.mark.parametrize("family", ["nomic_bert", "modernbert", "bert"])
def test_a_run_changes_no_configuration(make_model, texts, context_documents, family, mode):
    model = make_model(family, context_attention=mode, sequence_dropout_prob=0.1)
    model.gradient_checkpointing_enable()

    def snapshot():
        modules = [module for module in model.modules() if hasattr(module, "config")]
        assert len(modules) > 6
        return [copy.deepcopy(vars(module.config)) for module in modules]

    before = str(snapshot())
    model.train()(*texts, *context_documents).embeddings.sum().backward()
    model.eval().encode_texts(*texts, context=model.encode_context(*context_documents))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(*texts, *context_documents)
    assert str(snapshot()) == before


@pytest.mark.parametrize(
    ("family", "name", "message"),
    [
        ("nomic_bert", "paged|eager", r"supports the attention implementations eager, sdpa.*got `paged\|eager`"),
        ("modernbert", "flash_attention_2", "local layers of `modernbert`. Use `sdpa` or `flex_attention`"),
    ],
)
def test_what_cannot_show_the_context_is_refused_when_it_is_named(make_model, texts, tmp_path, family, name, message):
    model = make_model(family)
    expected = model(*texts).embeddings
    for wish in (name, {"first_stage_config": "eager", "second_stage_config": name}):
        with pytest.raises(ValueError, match=message):
            model.set_attn_implementation(wish)
        assert implementations(model) == ["sdpa"] * 5
        torch.testing.assert_close(model(*texts).embeddings, expected, atol=0, rtol=0)
    model.save_pretrained(tmp_path)
    for wish in (name, {"second_stage_config": name}):
        with pytest.raises(ValueError, match=message):
            CDEModel.from_pretrained(tmp_path, attn_implementation=wish)
        with pytest.raises(ValueError, match=message):
            AutoModel.from_config(copy.deepcopy(model.config), attn_implementation=wish)


def test_copies_of_a_model_have_their_own_implementation(make_model, texts):
    model = make_model(context_attention="prefix")
    expected = model(*texts).embeddings
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.set_attn_implementation("eager")
        torch.testing.assert_close(other(*texts).embeddings, expected, atol=1e-5, rtol=0)
    assert implementations(model) == ["sdpa"] * 5


def test_a_model_of_the_same_configuration_has_the_same_implementation(make_model, texts):
    model = make_model(context_attention="prefix")
    model.set_attn_implementation("eager")
    model(*texts)
    again = CDEModel(copy.deepcopy(model.config)).eval()
    assert implementations(again) == ["eager"] * 5
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(*texts).embeddings, model(*texts).embeddings, atol=0, rtol=0)
    assert "cde_" not in str(model.config.to_dict())


@pytest.mark.parametrize("mode", ["joint", "prefix"])
def test_flash_attention_runs_in_half_precision_under_autocast(
    make_model, texts, context_documents, flash_kernel, mode
):
    model = make_model(context_attention=mode)
    expected = model(*texts, *context_documents).embeddings
    model.second_stage_model.backbone.config._attn_implementation_internal = "flash_attention_2"  # not installed
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = model(*texts, *context_documents).embeddings
    assert set(flash_kernel) == {torch.bfloat16}
    assert torch.cosine_similarity(embeddings.float(), expected).min() > 0.98
