"""What a configuration describes, and which combinations it refuses."""

import json
import math

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import NomicBertConfig

from cde_hf import CDEConfig


@pytest.fixture
def make_config(backbone_config):
    def make(first="nomic_bert", second="nomic_bert", **fields):
        return CDEConfig(
            first_stage_config=backbone_config(first), second_stage_config=backbone_config(second), **fields
        )

    return make


SEQUENCE = {"context_as_sequence": True, "context_attention": "joint"}


def test_the_default_is_the_papers_backbone_in_prefix_attention():
    config = CDEConfig()
    for stage in (config.first_stage_config, config.second_stage_config):
        assert (stage.model_type, stage.num_hidden_layers, stage.hidden_size) == ("nomic_bert", 12, 768)
    assert (config.context_size, config.num_soft_prompts, config.context_attention) == (64, 8, "prefix")


def test_a_backbone_config_given_for_both_stages_is_not_shared():
    backbone = NomicBertConfig(num_hidden_layers=1)
    config = CDEConfig(first_stage_config=backbone, second_stage_config=backbone)
    config.first_stage_config.num_hidden_layers = 3
    assert config.second_stage_config.num_hidden_layers == 1


def test_sizes_follow_from_the_fields(make_config):
    config = make_config(context_size=5, num_soft_prompts=4)
    assert config.num_block_tokens == 9
    assert (config.hidden_size, config.vocab_size) == (32, 100)


def test_mteb_finds_the_context_size(make_config):
    assert make_config(context_size=7).transductive_corpus_size == 7


@pytest.mark.parametrize("frequency_scale", [0.25, math.inf])
def test_survives_the_disk(make_config, tmp_path, frequency_scale):
    config = make_config("bert", "modernbert", pooling="context_frequency", frequency_scale=frequency_scale)
    config.save_pretrained(tmp_path)
    loaded = CDEConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.frequency_scale == frequency_scale


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context_size": 0}, "`context_size` must be at least 1, got 0"),
        ({"num_soft_prompts": -1}, "`num_soft_prompts` must not be negative"),
        ({"context_attention": "cross"}, "context_attention"),
        ({"pooling": "cls"}, "pooling"),
        ({"sequence_dropout_prob": 1.5}, "must be a probability between 0 and 1, got 1.5"),
        ({"has_null_embedding": False}, "Set `sequence_dropout_prob=0.0` or `has_null_embedding=True`"),
        ({"frequency_scale": 0.0}, "`frequency_scale` must be positive"),
        ({"instruction_end_id": 100}, "must be a token id below the vocabulary size 100"),
        ({"context_as_sequence": True, "context_attention": "prefix"}, "the context is an unordered set"),
        ({**SEQUENCE, "second": "bert"}, "needs a second stage with rotary positions"),
        ({"normalize_text_twice": True}, "is for the released ModernBERT weights"),
    ],
)
def test_what_cannot_work_is_refused(make_config, fields, message):
    with pytest.raises((ValueError, StrictDataclassError), match=message):
        make_config(**fields)


def test_a_checkpoint_from_before_the_lexical_part_was_removed_is_read_if_it_has_none(make_config, tmp_path):
    fields = make_config().to_dict()
    (tmp_path / "config.json").write_text(json.dumps({**fields, "lexical_size": 0, "lexical_weight": 0.3}))
    assert CDEConfig.from_pretrained(tmp_path).to_dict().keys() == fields.keys()
    (tmp_path / "config.json").write_text(json.dumps({**fields, "lexical_size": 64, "lexical_weight": 0.3}))
    with pytest.raises(ValueError, match="`lexical_size=64`, but this version no longer has the lexical part"):
        CDEConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("fields", [{"pooling": "context_frequency"}, {"context_in_token_space": True}])
def test_what_compares_tokens_needs_one_vocabulary(backbone_config, fields):
    stages = {"first_stage_config": backbone_config(vocab_size=99), "second_stage_config": backbone_config()}
    CDEConfig(**stages, context_in_token_space=False)
    with pytest.raises((ValueError, StrictDataclassError), match="have 99 and 100 tokens. Use one tokenizer"):
        CDEConfig(**stages, **{"context_in_token_space": False, **fields})


def test_documents_that_tell_nothing_need_the_null_embedding():
    with pytest.raises((ValueError, StrictDataclassError), match="needs the null embedding"):
        CDEConfig(has_null_embedding=False, sequence_dropout_prob=0.0)


def test_checkpoints_of_an_earlier_prefix_attention_are_refused():
    for value in (True, False):
        with pytest.raises((ValueError, StrictDataclassError), match="only an earlier form of prefix attention had"):
            CDEConfig(context_attention="prefix", separate_context=value)
    assert not CDEConfig(context_attention="joint", separate_context=False).context_in_token_space


def test_other_encoders_are_refused():
    with pytest.raises(
        (ValueError, StrictDataclassError), match="`gpt2`, which is not a supported bidirectional encoder"
    ):
        CDEConfig(first_stage_config={"model_type": "gpt2"})


def test_decoders_are_refused(backbone_config):
    with pytest.raises((ValueError, StrictDataclassError), match="backbones must be bidirectional"):
        CDEConfig(second_stage_config=backbone_config("bert", is_decoder=True))
