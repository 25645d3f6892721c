"""
Pairs of summary and body from the docstrings of source files, which are parsed and never imported.

1. The opening sentence of a docstring is the query, what follows it the document.
2. A pair is left out if its query is no sentence (a heading, a parameter) or its document says too little.
3. Of the pairs of a library every query and every document stays once. What comes often is boilerplate and goes.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path


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


def find_source_files(folder: Path) -> list[Path]:
    """The Python files of a library in the order of their paths, without tests and vendored code."""
    files = []
    for path in folder.rglob("*.py"):
        *folders, name = path.relative_to(folder).parts
        if _SKIPPED_FOLDERS.isdisjoint(folders) and not _SKIPPED_FILES.fullmatch(name):
            files.append(path)
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def read_docstrings(path: Path) -> list[str]:
    """The docstrings of a source file in the order of their lines; none of a generated file or one not in Python 3."""
    source = path.read_bytes()
    if _GENERATED.search(source[:_NUM_HEADER_BYTES]):
        return []
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in strings, which are not ours
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = sorted((node for node in ast.walk(tree) if isinstance(node, kinds)), key=_line)
    docstrings = [ast.get_docstring(node) or "" for node in nodes]
    return [docstring.encode(errors="ignore").decode() for docstring in docstrings if docstring]


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """
    The opening sentence of a docstring and what follows it, or `None` if they make no good pair.

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
    """The pairs whose query and document come for the first time and, but for letter case and space, not often."""
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


__all__ = ["drop_repeats", "find_source_files", "read_docstrings", "split_docstring"]
