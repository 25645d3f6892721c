"""
Runs the benchmarks and writes their tables into a page, docs/benchmarks.md.

A table is between the comments `<!-- table: name -->` and `<!-- end of table -->`. The text between them is replaced.
The rest of the page stays unchanged.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm


FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
PLOTS = {"attention": PAGE.with_name("time_per_text.svg"), "training memory": PAGE.with_name("memory_by_batch.svg")}

# For each table: the script, the arguments of the small run, and the changes for the full run.
TABLES = {
    "imports": ("imports.py", "--rounds 5", "--rounds 20"),
    "attention": ("attention.py", "--batch-sizes 1 --seconds 12", "--seconds 100"),
    "attention in batches": (
        "attention.py",
        "--batch-sizes 16 --lengths 16 64 --max-joint-batch-size 1 --seconds 15",
        "--lengths 16 64 128 512 --max-joint-batch-size 16 --seconds 200",
    ),
    "attention of MiniLM": (
        "attention.py",
        "--model MiniLM --lengths 16 64 128 --max-joint-batch-size 1 --seconds 5",
        "--max-joint-batch-size 16 --seconds 40",
    ),
    "attention of MiniLM, small context": (
        "attention.py",
        "--model MiniLM --context-size 64 --lengths 16 64 128 --max-joint-batch-size 1 --seconds 5",
        "--max-joint-batch-size 16 --seconds 40",
    ),
    "encode": (
        "encoding.py",
        "--models MiniLM --texts 64 --max-words 16 128 --seconds 5",
        "--models MiniLM NomicBERT --texts 128 --seconds 60",
    ),
    "corpus part": ("corpus_part.py", "--documents 10000 100000 --seconds 10", "--seconds 60"),
    "forms": ("precision.py", "--batch-sizes 1 --seconds 10", "--batch-sizes 1 16 --seconds 60"),
    "surrogate": ("surrogate.py", "--texts 64 --seconds 16", "--texts 2048 --seconds 200"),
    "training": (
        "training.py",
        "--batch-sizes 64 256 512 --max-joint-batch-size 256 --seconds 50",
        "--batch-sizes 64 256 512 1024 --max-joint-batch-size 1024 --seconds 300",
    ),
    "training memory": (
        "training_memory.py",
        "--kinds biencoder prefix joint --batch-sizes 64 512 1024",
        "--kinds biencoder prefix joint --batch-sizes 64 256 512 1024 --pairs 1024",
    ),
}


# Only by `--device cuda`.
GPU_TABLES = {"gpu": ("gpu.py", "", "--rounds 20")}


def run_table(name: str, is_full: bool) -> str:
    """Runs one benchmark and returns its table."""
    script, arguments, changes = (TABLES | GPU_TABLES)[name]
    command = [sys.executable, str(FOLDER / script), *arguments.split(), *(changes.split() if is_full else [])]
    if name in PLOTS:
        command += ["--plot", str(PLOTS[name])]
    # Times are processor times, so a library's second thread would count twice. Some virtual machines report AMX but
    # do not run it, and a bfloat16 matrix product then ends the process.
    environment = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout


def put_table(page: str, name: str, table: str) -> str:
    """Returns the page with one table replaced."""
    start = f"<!-- table: {name} -->\n"
    pattern = f"{re.escape(start)}.*?<!-- end of table -->"
    if not re.search(pattern, page, re.DOTALL):
        raise ValueError(
            f"The page has no place for the table `{name}`. Add `{start.strip()}` and `<!-- end of table -->` to it."
        )
    return re.sub(pattern, lambda _: f"{start}\n{table}\n<!-- end of table -->", page, flags=re.DOTALL)


def describe_duration(seconds: float, is_full: bool) -> str:
    """Describes how long the run took, in processor time and in wall-clock time."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        f"The tables between marks come from one run of `make {'bench-full' if is_full else 'bench'}`, which took "
        f"{(usage.ru_utime + usage.ru_stime) / 60:.0f} minutes of processor time in {seconds / 60:.0f} minutes.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="run the full grid with more rounds")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="which tables to make (default: cpu)")
    parser.add_argument("--tables", choices=list(TABLES), nargs="+", help="some of the tables of the CPU")
    args = parser.parse_args()
    args.tables = list(GPU_TABLES) if args.device == "cuda" else args.tables or list(TABLES)
    start = time.perf_counter()
    for name in tqdm(args.tables, "Benchmarks"):
        table = run_table(name, args.full)
        # One by one, so that an interrupted run keeps what it has measured.
        PAGE.write_text(put_table(PAGE.read_text(), name, table))
    if args.tables == list(TABLES):
        duration = describe_duration(time.perf_counter() - start, args.full)
        PAGE.write_text(put_table(PAGE.read_text(), "duration", duration))


if __name__ == "__main__":
    main()
