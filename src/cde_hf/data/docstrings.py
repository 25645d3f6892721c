"""
The docstring corpus: (summary, body) pairs from the libraries that are installed here, each library a domain.

The source files are parsed and never imported.

1. The first sentence of a docstring is the query, the rest is the document.
2. A pair is dropped if its query is not a sentence (but a heading or a parameter) or its document is too short.
3. Each query and each document of a library is kept once. A text that occurs often is boilerplate and is dropped.
"""

import ast
import importlib.util
import os
import platform
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import Dataset, Features, Value
from transformers.utils import logging

from .pairs import cached_rows
from .retrieval_sets import RetrievalSet, retrieval_set_from_pairs


logger = logging.get_logger(__name__)

# Libraries that this package installs, with or without its extras: distribution names and import names. `python` is
# the standard library.
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

# Libraries of medium size on different subjects. Hardly any of their documents has a near copy in another library.
HELD_OUT_LIBRARIES = ("huggingface-hub", "networkx", "pydantic", "scikit-learn")

# Raise it with every change of the rules below, so that an older corpus in the cache is not reused.
_CORPUS_VERSION = 1
_FEATURES = Features(dict.fromkeys(("query", "document", "domain"), Value("string")))

_SKIPPED_FOLDERS = frozenset(
    [
        *("test", "tests", "testing", "lib2to3", "idlelib", "ensurepip", "site-packages", "dist-packages"),
        *("vendor", "vendored", "_vendor", "_vendored", "third_party", "_distutils", "array_api_compat"),
        *("extern", "external", "externals", "_external", "_externals", "array_api_extra"),
    ]
)
_SKIPPED_FILES = re.compile(r"(_?test_.*|.*_tests?|conftest)\.py")
_GENERATED = re.compile(rb"^#.*(auto(matically)?[- ]?generated|generated (automatically|by)|do not edit)", re.I | re.M)
_NUM_HEADER_BYTES = 2000

_BLANK_LINE = re.compile(r"\n\s*\n")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(\s*->.*)?")
_RULE = re.compile(r"^\s*([=\-~^*#_+\"'`])\1{2,}\s*$", re.M)
_SENTENCE_END = re.compile(r"(?<=[^\d.][.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)\s+(?=[A-Z`*\[\"'(:])")
_PARAMETER = re.compile(r"[`*]*\w+[`*]*\s*(\(.*?\))?\s*:(\s|$)")
_SENTENCE_START = re.compile(r"[`*\"'(\[]*\w")
_WORD = re.compile(r"[^\W\d_]{2,}")

_MIN_QUERY_LENGTH, _MAX_QUERY_LENGTH, _MIN_QUERY_WORDS = 15, 200, 3
_MIN_DOCUMENT_LENGTH, _MAX_DOCUMENT_LENGTH, _MIN_DOCUMENT_WORDS = 100, 1200, 12
_MAX_REPEATS = 4


def docstring_pairs(
    *, libraries: Sequence[str] | None = None, cache_folder: str | os.PathLike | None = None
) -> Dataset:
    """
    Loads the docstring corpus: the first sentence of each docstring is the query, the rest is the document.

    The source files are parsed, not imported. That takes a minute or two for all libraries. The result is cached on
    disk until a library changes its version.

    Args:
        libraries (`Sequence[str]`, *optional*, defaults to all that are installed):
            Names from `LIBRARIES`.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to the cache of `datasets`):
            Where the corpus is kept.

    Returns:
        `datasets.Dataset`: Memory-mapped pairs with the columns `query`, `document` and `domain`. The domain is the
        name of the library. Rows are in the order of library, file and line.
    """
    found = find_libraries(libraries)
    versions = {name: library.version for name, library in found.items()}
    logger.info(f"Docstrings of {', '.join(f'{name} {number}' for name, number in versions.items())}.")
    identity = ["docstrings", _CORPUS_VERSION, versions]
    return cached_rows(lambda: _stream_pairs(found), _FEATURES, identity, cache_folder)


def docstring_split(
    *, libraries: Sequence[str] | None = None, cache_folder: str | os.PathLike | None = None
) -> tuple[Dataset, list[RetrievalSet]]:
    """
    Splits the docstring corpus by library: `HELD_OUT_LIBRARIES` are not trained on and become retrieval sets.

    Args:
        libraries (`Sequence[str]`, *optional*, defaults to all that are installed):
            Names from `LIBRARIES`.
        cache_folder (`str` or `os.PathLike`, *optional*, defaults to the cache of `datasets`):
            Where the corpus is kept.

    Returns:
        `tuple[Dataset, list[RetrievalSet]]`: The pairs to train on, and a retrieval set for each held-out library.
    """
    dataset = docstring_pairs(libraries=libraries, cache_folder=cache_folder)
    domains = np.array(dataset["domain"][:])
    is_held_out = np.isin(domains, HELD_OUT_LIBRARIES)
    if is_held_out.all():
        raise ValueError(
            f"All of the libraries {np.unique(domains).tolist()} are held out, so no pair is left to train on. Add "
            "others."
        )
    retrieval_sets = [
        retrieval_set_from_pairs(library, dataset.select(np.flatnonzero(domains == library)))
        for library in HELD_OUT_LIBRARIES
        if library in domains
    ]
    return dataset.select(np.flatnonzero(~is_held_out)), retrieval_sets


def library_versions() -> dict[str, str]:
    """
    Returns the versions of the libraries of the docstring corpus that are installed here.

    Returns:
        `dict[str, str]`: Versions by name, in the order of the names.
    """
    return {name: library.version for name, library in find_libraries().items()}


class InstalledLibrary(NamedTuple):
    """Version of a library and folder of its source files."""

    version: str
    folder: Path


def find_libraries(names: Sequence[str] | None = None) -> dict[str, InstalledLibrary]:
    """
    Finds the libraries of the docstring corpus that are installed here.

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
            f"`libraries` has {unknown}, which the docstring corpus does not cover. Choose from {list(LIBRARIES)}."
        )
    found = {name: library for name in wanted if (library := _find_library(name)) is not None}
    if not found:
        raise ValueError(f"None of the libraries {wanted} is installed. Choose others, or install one of them.")
    if len(found) < len(wanted):
        missing = [name for name in wanted if name not in found]
        logger.info(f"Not installed, so missing from the docstring corpus: {', '.join(missing)}.")
    return found


def find_source_files(folder: Path) -> list[Path]:
    """Finds the Python files of a library in the order of their paths, without tests and vendored code."""
    files = []
    for path in folder.rglob("*.py"):
        *folders, name = path.relative_to(folder).parts
        if _SKIPPED_FOLDERS.isdisjoint(folders) and not _SKIPPED_FILES.fullmatch(name):
            files.append(path)
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def read_docstrings(path: Path) -> list[str]:
    """Reads the docstrings of a source file, in the order of their lines. Skips generated files and Python 2."""
    source = path.read_bytes()
    if _GENERATED.search(source[:_NUM_HEADER_BYTES]):
        return []
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes in other projects' strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = sorted((node for node in ast.walk(tree) if isinstance(node, kinds)), key=_line)
    docstrings = [ast.get_docstring(node) or "" for node in nodes]
    return [docstring.encode(errors="ignore").decode() for docstring in docstrings if docstring]


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """
    Splits a docstring into its first sentence and the rest. Returns `None` if they make no good pair.

    Args:
        docstring (`str`):
            The docstring, without the indentation of the code around it.

    Returns:
        `tuple[str, str]`, *optional*: Query and document. The document does not contain the query and has at most
        1,200 characters.

    Example:

    ```python
    >>> body = "The graph is walked breadth first, so that neighbours come before their own neighbours do. " * 2
    >>> query, document = split_docstring("Yield the nodes that can be reached from here.\\n\\n" + body)
    >>> query
    'Yield the nodes that can be reached from here.'
    >>> document == body.strip()
    True

    ```
    """
    opening, rest = _partition(_BLANK_LINE, docstring.strip())
    if _SIGNATURE.fullmatch(_join_lines(opening)):
        opening, rest = _partition(_BLANK_LINE, rest.strip())
    if _RULE.search(opening):
        return None
    query, rest_of_opening = _partition(_SENTENCE_END, _join_lines(opening))
    document = "\n\n".join(part for part in (rest_of_opening, rest.strip()) if part)
    is_good = _is_sentence(query) and _says_enough(document) and not _contains(document, query)
    return (query, _cut(document)) if is_good else None


def drop_repeats(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keeps pairs whose query and document are new and not frequent, ignoring letter case and white space."""
    queries = [_normalize(query) for query, _ in pairs]
    documents = [_normalize(document) for _, document in pairs]
    counts = Counter(queries) + Counter(documents)
    seen: set[str] = set()
    kept = []
    for pair, *texts in zip(pairs, queries, documents, strict=True):
        if seen.isdisjoint(texts) and all(counts[text] <= _MAX_REPEATS for text in texts):
            seen.update(texts)
            kept.append(pair)
    return kept


def _stream_pairs(libraries: Mapping[str, InstalledLibrary]) -> Iterator[dict[str, str]]:
    files = {name: find_source_files(library.folder) for name, library in libraries.items()}
    seen: set[str] = set()
    with logging.tqdm(desc="Reading docstrings", unit=" files", total=sum(map(len, files.values()))) as progress:
        for name, paths in files.items():
            pairs: list[tuple[str, str]] = []
            for path in paths:
                pairs.extend(pair for docstring in read_docstrings(path) if (pair := split_docstring(docstring)))
                progress.update()
            for query, document in drop_repeats(pairs):
                # A document that two libraries share must not be on both sides of a split.
                if document not in seen:
                    seen.add(document)
                    yield {"query": query, "document": document, "domain": name}


def _find_library(name: str) -> InstalledLibrary | None:
    if name == "python":
        return InstalledLibrary(platform.python_version(), Path(sysconfig.get_path("stdlib")))
    try:
        # A package at the top level is found without being imported.
        specification = importlib.util.find_spec(LIBRARIES[name])
        if specification is None or specification.origin is None:
            return None
        return InstalledLibrary(version(name), Path(specification.origin).parent)
    except PackageNotFoundError:
        return None


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _partition(pattern: re.Pattern[str], text: str) -> tuple[str, str]:
    first, *rest = pattern.split(text, maxsplit=1)
    return first, rest[0] if rest else ""


def _is_sentence(query: str) -> bool:
    return (
        _MIN_QUERY_LENGTH <= len(query) <= _MAX_QUERY_LENGTH
        and len(query.split()) >= _MIN_QUERY_WORDS
        and _SENTENCE_START.match(query) is not None
        and not query.endswith(":")
        and not _PARAMETER.match(query)
    )


def _says_enough(document: str) -> bool:
    return len(document) >= _MIN_DOCUMENT_LENGTH and len(_WORD.findall(document)) >= _MIN_DOCUMENT_WORDS


def _contains(document: str, query: str) -> bool:
    return _normalize(query).rstrip(".") in _normalize(document)


def _cut(document: str) -> str:
    if len(document) <= _MAX_DOCUMENT_LENGTH:
        return document
    return document[:_MAX_DOCUMENT_LENGTH].rsplit(maxsplit=1)[0]


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _normalize(text: str) -> str:
    return _join_lines(text).casefold()


__all__ = ["HELD_OUT_LIBRARIES", "LIBRARIES", "docstring_pairs", "docstring_split", "library_versions"]
