"""Loads the model to train, with its tokenizer."""

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

from ..model_names import model_path, named_model
from ..modeling import CDEModel
from ..modeling.from_encoder import find_encoder_folder


Architecture = Literal["contextual", "biencoder"]

# Training uses the plain mean. A model that is saved with this pooling uses the context's frequencies at inference.
DEFAULT_POOLING: Final = "context_frequency"


def load_model(
    name_or_path: str | Path, architecture: Architecture = "contextual", *, seed: int = 0, **fields: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Loads a CDE checkpoint, or an encoder, around which a contextual model is built unless a biencoder is wanted.

    Args:
        name_or_path (`str` or `Path`):
            Folder or Hub name of a CDE checkpoint, an encoder or a sentence-transformers model, or `"minilm"`.
        architecture (`str`, *optional*, defaults to `"contextual"`):
            `"contextual"`, or `"biencoder"` for the encoder itself.
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
    config, _ = PreTrainedConfig.get_config_dict(path, subfolder=subfolder)
    is_contextual = config.get("model_type") == "cde" or "transductive_corpus_size" in config  # ours, or released
    if architecture == "biencoder":
        if is_contextual:
            raise ValueError(
                f"`{name_or_path}` is a contextual model, not an encoder to train as a biencoder. Give an encoder, or "
                "train with the architecture `contextual`."
            )
        return AutoModel.from_pretrained(path, subfolder=subfolder), tokenizer
    if is_contextual:
        return CDEModel.from_pretrained(path), tokenizer
    return CDEModel.from_biencoder(path, **{"pooling": DEFAULT_POOLING, **fields}), tokenizer


__all__ = ["DEFAULT_POOLING", "Architecture", "load_model"]
