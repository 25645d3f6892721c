"""
An index on disk: a folder with a manifest, and a subfolder of the files of the last save.

Each save has a subfolder of its own, so that an index that is open keeps its files, and no file is replaced.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import faiss
import numpy as np
import pyarrow as pa

from ..evaluation.bm25 import Postings
from ..files import MANIFEST, FolderKind
from ..modeling import Context
from ..modeling.context import CONTEXT_FILE
from .nearest import ApproximateVectors, FlatVectors
from .rows import DOCUMENTS_SCHEMA, StoredDocuments
from .state import IndexState
from .terms import TermIndex


INDEX = FolderKind("index", 4, "Make one with `cde-hf index MODEL CORPUS FOLDER`.", hashed_up_to=0)

_DOCUMENTS_FILE = "documents.arrow"
_POSTINGS_FILE = "terms.{}.npy"
_POSTINGS = ("counts", "rows", "starts", "lengths")


def write_index(folder: Path, state: IndexState, context: Context | None, facts: Mapping[str, Any]) -> None:
    """Writes a state that is ready to save, and replaces an older index in the folder."""
    name = uuid4().hex[:8]
    terms = {} if state.terms is None else {"lexical_weight": state.terms.weight}
    with INDEX.replacing(folder, {**facts, **terms, "subfolder": name}) as new_folder:
        subfolder = new_folder / name
        subfolder.mkdir()
        vectors = state.base.vectors
        if isinstance(vectors, ApproximateVectors):
            faiss.write_index(vectors.index, str(subfolder / vectors.file_name))
        else:
            _write_array(subfolder / vectors.file_name, state)
        with pa.ipc.new_file(str(subfolder / _DOCUMENTS_FILE), DOCUMENTS_SCHEMA) as writer:
            for table in state.tables():
                writer.write_table(table)
        if state.terms is not None:
            postings = state.remaining_postings(state.terms)
            for part in _POSTINGS:
                np.save(subfolder / _POSTINGS_FILE.format(part), getattr(postings, part))
        if context is not None:
            context.save(subfolder / CONTEXT_FILE)


def read_index(folder: Path, *, verify: bool) -> tuple[dict[str, Any], IndexState, Context | None]:
    """
    Opens the files of a folder, which stay on disk, and returns facts, state and context.

    Files that another process replaces meanwhile are opened again.
    """
    while True:
        before = _manifest_text(folder)
        try:
            return _open(folder, INDEX.read(folder, verify=verify))
        except (OSError, ValueError, RuntimeError) as error:  # FAISS raises the last one
            if _manifest_text(folder) != before:
                continue
            if isinstance(error, RuntimeError):
                raise ValueError(f"The index `{folder}` is corrupt ({error}). {INDEX.remedy}") from error
            raise


def _open(folder: Path, facts: dict[str, Any]) -> tuple[dict[str, Any], IndexState, Context | None]:
    subfolder = folder / facts["subfolder"]
    names = {Path(name).name for name in facts["files"]}
    vectors_class = FlatVectors if FlatVectors.file_name in names else ApproximateVectors
    vectors = vectors_class.read(subfolder / vectors_class.file_name)
    documents = StoredDocuments(pa.ipc.open_file(pa.memory_map(str(subfolder / _DOCUMENTS_FILE))).read_all())
    context = Context.load(subfolder / CONTEXT_FILE) if CONTEXT_FILE in names else None
    terms = None
    if "lexical_weight" in facts:
        parts = (np.asarray(np.load(subfolder / _POSTINGS_FILE.format(part), mmap_mode="r")) for part in _POSTINGS)
        terms = TermIndex(Postings(*parts), facts["lexical_weight"])
    return facts, IndexState.of(vectors, documents, terms), context


def _manifest_text(folder: Path) -> str | None:
    path = folder / MANIFEST
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _write_array(path: Path, state: IndexState) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(state), state.dim)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in state.blocks():
            file.write(np.ascontiguousarray(block).data)


__all__ = ["INDEX", "read_index", "write_index"]
