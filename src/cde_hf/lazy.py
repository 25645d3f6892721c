"""Imports the names of a package on first use, because importing torch alone takes seconds."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


# Optional packages, and the extra that installs each.
_EXTRAS = {"accelerate": "search", "faiss": "search"}


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """
    Returns what a package needs to import its names on first use.

    Args:
        package (`str`):
            Name of the package.
        names (`Mapping[str, Sequence[str]]`):
            The names, under the submodule that defines them.

    Returns:
        `tuple`: `__getattr__`, `__dir__` and `__all__` of the package.
    """
    module_of = {name: module for module, group in names.items() for name in group}

    def import_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        try:
            return getattr(import_module(f"{package}.{module_of[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRAS:
                raise
            raise ImportError(
                f"`{name}` needs the package `{error.name}`: `pip install 'cde-hf[{_EXTRAS[error.name]}]'`."
            ) from error

    return import_name, lambda: sorted(module_of), sorted(module_of)


__all__ = ["lazy_names"]
