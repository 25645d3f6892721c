"""Models built around an existing encoder."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging

from cde_hf import CDEModel
from cde_hf.modeling.pooling import mean_of_tokens


@pytest.fixture
def encoder_folder(backbone_config, tmp_path):
    """Function that saves a tiny encoder with random weights."""

    def save(name):
        config = backbone_config(name)
        AutoModel.from_config(AutoConfig.for_model(**config)).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


@pytest.mark.parametrize("family", ["nomic_bert", "modernbert", "bert", "roberta", "distilbert"])
def test_both_stages_start_from_the_encoder(encoder_folder, family):
    folder = encoder_folder(family)
    encoder, model = AutoModel.from_pretrained(folder), CDEModel.from_biencoder(folder, context_size=4)
    for stage in (model.first_stage_model, model.second_stage_model):
        weights = stage.backbone.state_dict()
        assert weights
        for name, weight in weights.items():
            torch.testing.assert_close(weight, encoder.state_dict()[name], atol=0, rtol=0)
    assert model.first_stage_model.backbone is not model.second_stage_model.backbone


def test_the_first_stage_may_have_fewer_layers(encoder_folder):
    model = CDEModel.from_biencoder(encoder_folder("modernbert"), first_stage_layers=2, context_size=4)
    assert len(model.first_stage_model.backbone.layers) == 2
    assert len(model.second_stage_model.backbone.layers) == 3
    with pytest.raises(ValueError, match="between 1 and the encoder's 3 layers, got 4"):
        CDEModel.from_biencoder(encoder_folder("modernbert"), first_stage_layers=4)


def test_a_model_to_train_has_a_first_stage(encoder_folder):
    with pytest.raises(ValueError, match="needs its first stage"):
        CDEModel.from_biencoder(encoder_folder("bert"), has_first_stage=False)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("contxt_size", "Did you mean `context_size`"),
        ("first_stage_layer", "Did you mean `first_stage_layers`"),
        ("zzz", "See the documentation of `CDEConfig`"),
    ],
)
def test_a_misspelt_field_is_refused(encoder_folder, name, hint):
    with pytest.raises(ValueError, match=f"`CDEConfig` has no field `{name}`. {hint}"):
        CDEModel.from_biencoder(encoder_folder("bert"), **{name: 3})


@pytest.mark.parametrize("kind", [str, Path])
def test_an_encoder_is_not_taken_for_a_cde_checkpoint(encoder_folder, kind):
    with pytest.raises(ValueError, match=r"of type `bert`, not a CDE checkpoint. .* `CDEModel.from_biencoder`"):
        CDEModel.from_pretrained(kind(encoder_folder("bert")))


def test_config_fields_are_passed_on(encoder_folder):
    model = CDEModel.from_biencoder(encoder_folder("bert"), context_size=9, context_attention="prefix")
    assert (model.config.context_size, model.config.context_attention) == (9, "prefix")


def test_the_embedding_starts_as_the_mean_of_the_text_tokens(encoder_folder, texts):
    model = CDEModel.from_biencoder(encoder_folder("bert"), context_size=4, context_attention="joint")
    hidden = []
    model.second_stage_model.backbone.register_forward_hook(lambda *args: hidden.append(args[2].last_hidden_state))
    embeddings = model.second_stage_model(*texts)
    weights = texts[1].unsqueeze(-1)
    text_hidden = hidden[0][:, -17:]
    torch.testing.assert_close(embeddings, (text_hidden * weights).sum(1) / weights.sum(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "context_frequency"])
def test_without_a_context_a_new_model_is_its_encoder(minilm, pooling):
    model = CDEModel.from_biencoder(minilm, context_size=4, context_attention="prefix", pooling=pooling)
    queries = AutoTokenizer.from_pretrained(minilm)(["which pet barks?", "sea"], padding=True, return_tensors="pt")
    input_ids, attention_mask = queries["input_ids"], queries["attention_mask"]
    with torch.no_grad():
        hidden_states = AutoModel.from_pretrained(minilm)(input_ids, attention_mask).last_hidden_state
    expected = mean_of_tokens(hidden_states, attention_mask)
    torch.testing.assert_close(model.encode_texts(input_ids, attention_mask), expected, atol=1e-5, rtol=0)


def test_all_weights_of_the_context_path_learn_within_two_steps(encoder_folder, texts, context_documents):
    model = CDEModel.from_biencoder(encoder_folder("bert"), context_size=6).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        embeddings = model(*texts, *context_documents).embeddings
        (embeddings @ embeddings.T).log_softmax(dim=1).diagonal().sum().backward()
        optimizer.step()
    first, second = model.first_stage_model, model.second_stage_model
    for weight in (first.backbone.embeddings.word_embeddings.weight, second.context_value_projections[0].weight):
        assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("mode", ["joint", "prefix"])
def test_all_minilm_becomes_contextual(minilm, mode):
    model = CDEModel.from_biencoder(minilm, context_size=4, context_attention=mode)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    documents = tokenizer(["a cat", "a dog", "a whale"], padding=True, return_tensors="pt")
    queries = tokenizer(["which pet barks?", "sea"], padding=True, return_tensors="pt")
    context = model.encode_context(documents["input_ids"], documents["attention_mask"])
    embeddings = model.encode_texts(queries["input_ids"], queries["attention_mask"], context=context)
    assert embeddings.shape == (2, 384)
    assert not torch.equal(embeddings, model.encode_texts(queries["input_ids"], queries["attention_mask"]))


def test_other_poolings_and_modules_are_named(minilm, tmp_path, caplog):
    shutil.copytree(minilm, tmp_path / "model")
    pooling = tmp_path / "model" / "1_Pooling" / "config.json"
    config = json.loads(pooling.read_text())
    pooling.write_text(json.dumps({**config, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}))
    modules = json.loads((tmp_path / "model" / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    logging.enable_propagation()
    for _ in range(2):  # a training looks for the encoder several times
        CDEModel.from_biencoder(tmp_path / "model", context_size=4)
    logging.disable_propagation()
    assert caplog.text.count("does not use mean pooling") == 1
    assert caplog.text.count("The module Dense") == 1


def test_a_model_without_transformer_is_refused(tmp_path):
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="starts with a module of type .*StaticEmbedding"):
        CDEModel.from_biencoder(tmp_path)
