"""Loads the model to train, with its tokenizer and its prompts."""

import json
from pathlib import Path
from typing import Any, Final, Literal

from transformers import (
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.utils import cached_file

from ..data import NO_PROMPTS, Prompts
from ..model_names import model_path, named_model
from ..modeling import CDEModel
from ..modeling.from_encoder import find_encoder_folder


Architecture = Literal["contextual", "biencoder"]

# Training uses the plain mean. A model that is saved with this pooling uses the context's frequencies at inference.
DEFAULT_POOLING: Final = "context_frequency"


def load_model(
    name_or_path: str | Path, architecture: Architecture | None = "contextual", *, seed: int = 0, **fields: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Loads a CDE checkpoint, or an encoder, around which a contextual model is built unless a biencoder is wanted.

    Args:
        name_or_path (`str` or `Path`):
            Folder or Hub name of a CDE checkpoint, an encoder or a sentence-transformers model, or `"minilm"`.
        architecture (`str`, *optional*, defaults to `"contextual"`):
            `"contextual"`, `"biencoder"` for the encoder itself, or `None` for what the checkpoint is.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the weights that are not loaded, such as the layers that a contextual model adds to its encoder.
        fields:
            Arguments of [`CDEModel.from_biencoder`] for a new contextual model. Its `pooling` defaults to
            `"context_frequency"`. A checkpoint keeps its own.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model and its tokenizer.
    """
    set_seed(seed)
    with named_model(str(name_or_path)):
        path, subfolder = find_encoder_folder(model_path(str(name_or_path)))
        # The code of a released checkpoint is not needed, so it is neither run nor asked for.
        tokenizer = AutoTokenizer.from_pretrained(path, subfolder=subfolder, trust_remote_code=False)
    is_contextual = is_contextual_checkpoint(name_or_path)
    if not is_contextual and _is_contextualized(name_or_path):
        raise ValueError(
            f"`{name_or_path}` is adapted to a corpus, which training would undo. Train the model that it was made "
            "from, and contextualize the result."
        )
    if architecture == "biencoder" or (architecture is None and not is_contextual):
        if is_contextual:
            raise ValueError(
                f"`{name_or_path}` is a contextual model, not an encoder to train as a biencoder. Give an encoder, or "
                "train with the architecture `contextual`."
            )
        return AutoModel.from_pretrained(path, subfolder=subfolder), tokenizer
    if is_contextual:
        return CDEModel.from_pretrained(path), tokenizer
    return CDEModel.from_biencoder(path, **{"pooling": DEFAULT_POOLING, **fields}), tokenizer


def is_contextual_checkpoint(name_or_path: str | Path) -> bool:
    """Whether a checkpoint is a contextual model, ours or a released one."""
    path, subfolder = find_encoder_folder(model_path(str(name_or_path)))
    config, _ = PreTrainedConfig.get_config_dict(path, subfolder=subfolder)
    return config.get("model_type") == "cde" or "transductive_corpus_size" in config


def _is_contextualized(name_or_path: str | Path) -> bool:
    """Whether [`contextualize`] made a model of a plain encoder."""
    path = model_path(str(name_or_path))
    file = cached_file(path, "modules.json", _raise_exceptions_for_missing_entries=False)
    return file is not None and any(
        module["type"].startswith(("corpus_part.", "frequency_pooling."))
        for module in json.loads(Path(file).read_text())
    )


def find_prompts(name_or_path: str | Path) -> Prompts:
    """
    Finds the prompts to train a model with: its own, which sentence-transformers saves with it.

    Args:
        name_or_path (`str` or `Path`):
            As for [`load_model`].

    Returns:
        `Prompts`: The model's prompts. The paper's for NomicBERT and for encoders that are no sentence-transformers
        model yet. Otherwise none, because a model that was trained without prompts gets worse with them.
    """
    path = model_path(str(name_or_path))
    with named_model(path):
        file, modules = (
            cached_file(path, name, _raise_exceptions_for_missing_entries=False)
            for name in ("config_sentence_transformers.json", "modules.json")
        )
        encoder, subfolder = find_encoder_folder(path)
        config, _ = PreTrainedConfig.get_config_dict(encoder, subfolder=subfolder)
    saved = json.loads(Path(file).read_text(encoding="utf-8")).get("prompts") or {} if file else {}
    query = saved.get("query") or ""
    document = saved.get("document") or saved.get("passage") or ""
    if query or document:
        return Prompts(query, document)
    return Prompts() if modules is None or config.get("model_type") == "nomic_bert" else NO_PROMPTS


__all__ = ["DEFAULT_POOLING", "Architecture", "find_prompts", "is_contextual_checkpoint", "load_model"]
