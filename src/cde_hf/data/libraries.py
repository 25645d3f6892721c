"""The libraries of the docstring corpus, and where their source files lie."""

import importlib.util
import platform
import sysconfig
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from transformers.utils import logging


logger = logging.get_logger(__name__)

# What the package installs, with or without its extras: names to install by and names to import by. `python` is the
# standard library.
LIBRARIES = {
    "accelerate": "accelerate",
    "anyio": "anyio",
    "bm25s": "bm25s",
    "click": "click",
    "datasets": "datasets",
    "dill": "dill",
    "faiss-cpu": "faiss",
    "filelock": "filelock",
    "fsspec": "fsspec",
    "httpx2": "httpx2",
    "huggingface-hub": "huggingface_hub",
    "hypothesis": "hypothesis",
    "jinja2": "jinja2",
    "joblib": "joblib",
    "markdown-it-py": "markdown_it",
    "mpmath": "mpmath",
    "mteb": "mteb",
    "narwhals": "narwhals",
    "networkx": "networkx",
    "numpy": "numpy",
    "packaging": "packaging",
    "pandas": "pandas",
    "polars": "polars",
    "psutil": "psutil",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pygments": "pygments",
    "pytest": "_pytest",
    "python": "",
    "python-dateutil": "dateutil",
    "requests": "requests",
    "rich": "rich",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "sentence-transformers": "sentence_transformers",
    "setuptools": "setuptools",
    "sortedcontainers": "sortedcontainers",
    "sympy": "sympy",
    "torch": "torch",
    "transformers": "transformers",
    "typer": "typer",
    "urllib3": "urllib3",
}

# Of medium size, on different subjects, and hardly any of their documents has a near copy in another library.
HELD_OUT_LIBRARIES = ("huggingface-hub", "networkx", "pydantic", "scikit-learn")


class InstalledLibrary(NamedTuple):
    """Version of a library and folder of its source files."""

    version: str
    folder: Path


def find_libraries(names: Sequence[str] | None = None) -> dict[str, InstalledLibrary]:
    """
    Those libraries of the docstring corpus that are installed here.

    Args:
        names (`Sequence[str]`, *optional*, defaults to all):
            Names from `LIBRARIES`.

    Returns:
        `dict[str, InstalledLibrary]`: Libraries by name, in the order of the names.
    """
    wanted = sorted(LIBRARIES if names is None else set(names))
    unknown = [name for name in wanted if name not in LIBRARIES]
    if unknown:
        raise ValueError(
            f"`libraries` has {unknown}, which the docstring corpus does not know. Choose from {list(LIBRARIES)}."
        )
    found = {name: library for name in wanted if (library := _find_library(name)) is not None}
    if not found:
        raise ValueError(f"None of the libraries {wanted} is installed. Choose others, or install one of them.")
    if len(found) < len(wanted):
        missing = [name for name in wanted if name not in found]
        logger.info(f"Not installed, so left out of the docstring corpus: {', '.join(missing)}.")
    return found


def library_versions(names: Sequence[str] | None = None) -> dict[str, str]:
    """
    Versions of those libraries of the docstring corpus that are installed here.

    Args:
        names (`Sequence[str]`, *optional*, defaults to all):
            Names from `LIBRARIES`.

    Returns:
        `dict[str, str]`: Versions by name, in the order of the names.
    """
    return {name: library.version for name, library in find_libraries(names).items()}


def _find_library(name: str) -> InstalledLibrary | None:
    if name == "python":
        return InstalledLibrary(platform.python_version(), Path(sysconfig.get_path("stdlib")))
    try:
        # A package at the top level is found without being imported.
        specification = importlib.util.find_spec(LIBRARIES[name])
        return InstalledLibrary(version(name), Path(specification.origin).parent) if specification else None
    except PackageNotFoundError:
        return None


__all__ = ["HELD_OUT_LIBRARIES", "LIBRARIES", "InstalledLibrary", "find_libraries", "library_versions"]
