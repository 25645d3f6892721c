"""Arrow files on disk that are either whole or made anew, each with a few facts beside it."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset
from huggingface_hub.constants import HF_HOME


_ROWS_PER_BATCH = 1000


def default_cache_folder() -> Path:
    """Where datasets are kept if no folder is given: `cde_hf` in the Hugging Face cache."""
    return Path(HF_HOME) / "cde_hf"


def cache_key(*facts: Any) -> str:
    """A short name for JSON-like facts, the same in every process."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()


def cached_dataset(
    folder: str | os.PathLike | None, name: str, write: Callable[[Path], dict[str, Any]]
) -> tuple[Dataset, dict[str, Any]]:
    """
    The memory-mapped dataset of this name, written first if it is not there or not whole.

    The rows lie in `name.arrow`, the facts in `name.json`. The latter is written last and holds the size of the
    former, so that a torn file is noticed.

    Args:
        folder (`str` or `os.PathLike`, *optional*, defaults to `cde_hf` in the Hugging Face cache):
            Where the files lie.
        name (`str`):
            Name of the files, which must change with the data.
        write (`Callable`):
            Writes an Arrow stream to the path it is given and returns the facts, which JSON must be able to hold.

    Returns:
        `tuple[Dataset, dict[str, Any]]`: The dataset and the facts.
    """
    folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
    rows_file, facts_file = folder / f"{name}.arrow", folder / f"{name}.json"
    facts = _facts_of_whole_file(rows_file, facts_file)
    if facts is None:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary_folder:
            new_rows_file, new_facts_file = (
                Path(temporary_folder, rows_file.name),
                Path(temporary_folder, "facts.json"),
            )
            facts = write(new_rows_file)
            sealed = {"num_bytes": new_rows_file.stat().st_size, "facts": facts}
            new_facts_file.write_text(json.dumps(sealed), encoding="utf-8")
            os.replace(new_rows_file, rows_file)
            os.replace(new_facts_file, facts_file)
    return Dataset.from_file(str(rows_file)), facts


def write_rows(rows: Iterable[dict[str, Any]], path: Path, schema: pa.Schema) -> None:
    """Writes rows to an Arrow stream, holding no more than a batch of them in memory."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        batch = []
        for row in rows:
            batch.append(row)
            if len(batch) == _ROWS_PER_BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
                batch.clear()
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))


def _facts_of_whole_file(rows_file: Path, facts_file: Path) -> dict[str, Any] | None:
    try:
        sealed = json.loads(facts_file.read_text(encoding="utf-8"))
        is_whole = rows_file.stat().st_size == sealed["num_bytes"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return sealed["facts"] if is_whole else None


__all__ = ["cache_key", "cached_dataset", "default_cache_folder", "write_rows"]
