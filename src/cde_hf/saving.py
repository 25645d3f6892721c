"""Saves checkpoints that load without this package: weights, tokenizer, code, and sentence-transformers' files."""

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .contextual_models import complete_checkpoint, find_cde_model, get_context
from .data import NO_PROMPTS, Prompts
from .files import CHECKPOINT, REQUIREMENTS
from .modeling import CDEModel, Context
from .modeling.backbones import longest_text
from .modeling.sentence_transformers_cde import CDETransformer


def save_checkpoint(
    model: CDEModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    prompts: Prompts | None = None,
    max_length: int = 512,
    context: Context | None = None,
) -> None:
    """
    Saves a model that `AutoModel` and `SentenceTransformer` can load without this package.

    An older checkpoint in the folder is replaced once the new one is complete. Files that were added to it stay.

    Args:
        model (`CDEModel`):
            Model to save.
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of the model.
        folder (`str` or `Path`):
            Folder to write.
        prompts (`Prompts`, *optional*):
            Prompts that the model was trained with. By default it has none.
        max_length (`int`, *optional*, defaults to `512`):
            Maximum number of tokens per text in sentence-transformers. Capped at the encoder's number of positions.
        context (`Context`, *optional*):
            Context to save in the checkpoint. Plain `encode` is then contextual.
    """
    prompts = prompts or NO_PROMPTS
    max_length = min(max_length, longest_text(model.second_stage_model.backbone))
    module = CDETransformer(
        model, tokenizer, max_seq_length=max_length, document_prompt=prompts.document, context=context
    )
    settings = {
        "modules.json": [
            {
                "idx": 0,
                "name": "0",
                "path": "",
                "type": "sentence_transformers_cde.CDETransformer",
                "kwargs": ["dataset_embeddings"],
            }
        ],
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": prompts.for_sentence_transformers(),
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
            "requirements": REQUIREMENTS,
        },
    }
    with CHECKPOINT.replacing(folder) as new_folder:
        module.save(str(new_folder))
        for name, content in settings.items():
            (new_folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def save_biencoder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    prompts: Prompts | None = None,
    max_length: int = 512,
) -> None:
    """
    Saves a plain encoder as a sentence-transformers model with mean pooling.

    Args:
        model (`PreTrainedModel`):
            Encoder to save.
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of the encoder.
        folder (`str` or `Path`):
            Folder to write. An older checkpoint in it is replaced once the new one is complete.
        prompts (`Prompts`, *optional*):
            Prompts that the model was trained with. By default it has none.
        max_length (`int`, *optional*, defaults to `512`):
            Maximum number of tokens per text.
    """
    saved_prompts = (prompts or NO_PROMPTS).for_sentence_transformers()
    with (
        CHECKPOINT.replacing(folder) as new_folder,
        tempfile.TemporaryDirectory(dir=new_folder) as encoder_folder,
    ):
        model.save_pretrained(encoder_folder)
        tokenizer.save_pretrained(encoder_folder)
        transformer = Transformer(encoder_folder, max_seq_length=max_length)
        pooling = Pooling(model.config.hidden_size, pooling_mode="mean")
        SentenceTransformer(modules=[transformer, pooling], prompts=saved_prompts, device="cpu").save(
            str(new_folder), create_model_card=False
        )


def save_with_context(model: SentenceTransformer, folder: str | Path, *, with_first_stage: bool = True) -> None:
    """
    Saves a sentence-transformers model together with its context, so that plain `encode` is contextual.

    Args:
        model (`SentenceTransformer`):
            A contextualized model or a CDE checkpoint, after `set_context(model, corpus)`.
        folder (`str` or `Path`):
            Folder to write.
        with_first_stage (`bool`, *optional*, defaults to `True`):
            Whether to include the first stage of a CDE checkpoint, which encodes other contexts later. Without it,
            the checkpoint is about half as large.
    """
    if get_context(model) is None:
        raise ValueError("The model has no context to save. Call `set_context(model, corpus)` first.")
    module: Any = model[0]
    whole_model = find_cde_model(model)
    with CHECKPOINT.replacing(folder) as new_folder:
        if whole_model is not None and not with_first_stage:
            module.model = _without_first_stage(whole_model)
        try:
            model.save(str(new_folder))
        finally:
            if whole_model is not None:
                module.model = whole_model
        complete_checkpoint(new_folder)


def _without_first_stage(model: CDEModel) -> CDEModel:
    config = copy.deepcopy(model.config)
    config.has_first_stage = False
    with torch.device("meta"):
        slim = type(model)(config)
    weights = {
        name: weight for name, weight in model.state_dict().items() if not name.startswith("first_stage_model.")
    }
    slim.load_state_dict(weights, assign=True)
    return slim


__all__ = ["save_biencoder", "save_checkpoint", "save_with_context"]
