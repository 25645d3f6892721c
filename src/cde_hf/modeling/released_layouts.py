"""
Reads the configurations released with the paper: `jxm/cde-small-v1` (NomicBERT) and `-v2` (ModernBERT).

Checkpoints do not contain this file, because they are saved in our layout.
"""

import json
import os
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.utils.hub import cached_file


# The released configurations name their backbone without describing it. Both equal the defaults of transformers.
KNOWN_BACKBONES = {
    "nomic-ai/nomic-bert-2048": {"model_type": "nomic_bert"},
    "answerdotai/ModernBERT-base": {"model_type": "modernbert"},
}

# Id of ":", which ends an instruction, in the vocabularies of the two released backbones.
COLON_IDS = {"nomic_bert": 1024, "modernbert": 27}

_MUST_BE = {
    "architecture": ("transductive",),
    "pooling_strategy": ("mean",),
    "biencoder_pooling_strategy": ("mean",),
    "pool_ignore_contextual_tokens": (True,),
    "transductive_tie_token_embeddings": (False,),
    "transductive_tokens_per_document": (1,),
    "autoregressive_backbone": (False,),
    "embedding_output_dim": (None,),
}


def read_released_config(config_dict: dict[str, Any], path: str | os.PathLike, **kwargs: Any) -> dict[str, Any]:
    """
    Converts a released `config.json` to the fields of `CDEConfig`.

    Args:
        config_dict (`dict`):
            The contents of the file.
        path (`str` or `os.PathLike`):
            The checkpoint's folder or its name on the Hub. Its `backbone_config.json` describes the backbones of both
            stages. Without that file they are known by name.
        kwargs:
            Arguments of `from_pretrained`. Only the Hub arguments are used.
    """
    hub_names = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
    hub_kwargs = {name: kwargs[name] for name in hub_names if name in kwargs}
    file = cached_file(path, "backbone_config.json", _raise_exceptions_for_missing_entries=False, **hub_kwargs)
    if file is not None:
        backbone_config = json.loads(Path(file).read_text(encoding="utf-8"))
        return _convert(config_dict, backbone_config, backbone_config)
    first_name = config_dict["embedder"]
    second_name = config_dict.get("dataset_backbone") or first_name
    return _convert(config_dict, _backbone_by_name(first_name), _backbone_by_name(second_name))


def _convert(
    config_dict: dict[str, Any], first_stage_config: dict[str, Any], second_stage_config: dict[str, Any]
) -> dict[str, Any]:
    for name, supported in _MUST_BE.items():
        if config_dict.get(name) is not None and config_dict[name] not in supported:
            raise ValueError(
                f"This checkpoint has `{name}={config_dict[name]!r}`, but only the released value {supported[0]!r} is "
                "supported. Load `jxm/cde-small-v1` or `jxm/cde-small-v2`."
            )
    first_layers = config_dict.get("limit_layers_first_stage") or config_dict.get("limit_layers")
    has_dropout = not config_dict.get("disable_dropout", False)
    first_stage_config = _native_backbone_config(first_stage_config, first_layers, has_dropout)
    second_stage_config = _native_backbone_config(second_stage_config, config_dict.get("limit_layers"), has_dropout)
    model_type = second_stage_config["model_type"]
    if model_type not in COLON_IDS:
        raise ValueError(f"Released checkpoints are of type {' or '.join(COLON_IDS)}, got `{model_type}`.")

    is_second_generation = model_type == "modernbert"
    dropout_prob = config_dict.get("transductive_sequence_dropout_prob") or 0.0
    ignores_instruction = config_dict.get("pool_ignore_instruction_tokens", False)
    return {
        "model_type": "cde",
        "dtype": config_dict.get("torch_dtype"),
        "first_stage_config": first_stage_config,
        "second_stage_config": second_stage_config,
        "context_size": config_dict["transductive_corpus_size"],
        "context_attention": "joint",
        "context_in_token_space": False,
        "sequence_dropout_prob": dropout_prob,
        "has_null_embedding": dropout_prob > 0,
        "output_residual": is_second_generation,
        "normalize_text_twice": is_second_generation,
        # The switch that removes the positions of the context only ever had an effect on NomicBERT.
        "context_as_sequence": is_second_generation
        or not config_dict.get("disable_transductive_rotary_embedding", False),
        "instruction_end_id": COLON_IDS[model_type] if ignores_instruction else None,
    }


def _backbone_by_name(name: str) -> dict[str, Any]:
    if name in KNOWN_BACKBONES:
        return dict(KNOWN_BACKBONES[name])
    config: PreTrainedConfig = AutoConfig.from_pretrained(name)
    return config.to_dict()


def _native_backbone_config(config: dict[str, Any], num_layers: int | None, has_dropout: bool) -> dict[str, Any]:
    if "n_embd" in config:
        config = {
            "model_type": "nomic_bert",
            "vocab_size": config["vocab_size"],
            "hidden_size": config["n_embd"],
            "num_hidden_layers": config["n_layer"],
            "num_attention_heads": config["n_head"],
            "intermediate_size": -(-config["n_inner"] // 256) * 256,  # the original rounds up
            "hidden_dropout_prob": config["resid_pdrop"],
            "attention_probs_dropout_prob": config["attn_pdrop"],
            "max_position_embeddings": config["n_positions"],
            "type_vocab_size": config["type_vocab_size"],
            "layer_norm_eps": config["layer_norm_epsilon"],
            "pad_token_id": config["pad_token_id"],
            "rope_parameters": {"rope_type": "default", "rope_theta": float(config["rotary_emb_base"])},
        }
    if not has_dropout:
        # Only the fields in the configuration: the native defaults of both backbones are zero.
        config = {name: 0.0 if _is_dropout(name) else value for name, value in config.items()}
    if num_layers is not None:
        config = {**config, "num_hidden_layers": num_layers}
        if config.get("layer_types") is not None:
            config["layer_types"] = config["layer_types"][:num_layers]
    return config


def _is_dropout(name: str) -> bool:
    return name.endswith(("_dropout", "_dropout_prob")) and name != "classifier_dropout"


__all__ = ["read_released_config"]
