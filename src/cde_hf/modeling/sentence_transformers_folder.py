"""Finds the encoder inside of a sentence-transformers model."""

import json
from pathlib import Path

from transformers.utils import logging
from transformers.utils.hub import cached_file


logger = logging.get_logger(__name__)


def find_encoder_folder(name_or_path: str | Path) -> tuple[str, str]:
    """
    Where the encoder of a model lies, be it a plain one or a sentence-transformers model.

    Args:
        name_or_path (`str` or `Path`):
            A folder or a name on the Hub.

    Returns:
        `tuple[str, str]`: The model and the subfolder in it, for `from_pretrained`.
    """
    name = str(name_or_path)
    modules_file = cached_file(name, "modules.json", _raise_exceptions_for_missing_entries=False)
    if modules_file is None:
        return name, ""
    modules = json.loads(Path(modules_file).read_text(encoding="utf-8"))
    if not modules[0]["type"].endswith("Transformer"):
        raise ValueError(
            f"`{name}` begins with a module of type `{modules[0]['type']}`, but only a Transformer has weights for "
            "both stages. Use a sentence-transformers model around an encoder."
        )
    for module in modules[1:]:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            _warn_unless_mean(name, module["path"])
        elif kind != "Normalize":
            logger.warning(f"The module {kind} of `{name}` has no counterpart in a CDE model and is left out.")
    return name, modules[0]["path"]


def _warn_unless_mean(name: str, subfolder: str) -> None:
    file = cached_file(name, "config.json", subfolder=subfolder)
    config = json.loads(Path(file).read_text(encoding="utf-8"))
    is_mean = config.get("pooling_mode", "mean") == "mean" and config.get("pooling_mode_mean_tokens", True)
    if not is_mean:
        logger.warning(
            f"`{name}` does not pool by the mean of its tokens, as a CDE model does: it will need more training. "
            "Prefer an encoder with mean pooling."
        )


__all__ = ["find_encoder_folder"]
