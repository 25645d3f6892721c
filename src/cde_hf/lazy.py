"""
Imports the names of a package on first use, because importing torch alone takes seconds.

The names are in the package's `__init__.pyi`, one `from .module import Name as Name` per line. Type checkers and
editors read the same file, so there is one list.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


# Optional packages, and the extra that installs each.
_EXTRAS = {"accelerate": "search", "faiss": "search"}


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """
    Returns what a package needs to import its names on first use.

    Args:
        package (`str`):
            Name of the package.
        file (`str`):
            Its `__init__.py`. The names are in the `__init__.pyi` beside it.

    Returns:
        `tuple`: `__getattr__`, `__dir__` and `__all__` of the package.
    """
    # Split into words, because importing `ast` or `pathlib` would take longer than the rest of `import cde_hf`.
    with open(f"{file}i", encoding="utf-8") as stub:
        imports = [line.split() for line in stub if line.startswith("from .")]
    module_of = {name: module for _, module, _, name, _, _ in imports}

    def import_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        try:
            return getattr(import_module(module_of[name], package), name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRAS:
                raise
            raise ImportError(
                f"`{name}` needs the package `{error.name}`: `pip install 'cde-hf[{_EXTRAS[error.name]}]'`."
            ) from error

    return import_name, lambda: sorted(module_of), sorted(module_of)


__all__ = ["lazy_names"]
