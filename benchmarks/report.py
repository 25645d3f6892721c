"""
Runs the benchmarks of encoding and writes their tables into a page, docs/benchmarks.md.

A table stands on the page between the comments `<!-- table: name -->` and `<!-- end of table -->`; what is between
them is replaced, the rest is left as it is.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm


FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
PLOT = PAGE.with_name("time_per_text.svg")

# For each table the script, the arguments of the small run and what the full run changes about them.
TABLES = {
    "attention": ("attention.py", "--batch-sizes 1 --seconds 25", "--seconds 100"),
    "attention in batches": (
        "attention.py",
        "--batch-sizes 16 --lengths 16 64 --seconds 20",
        "--lengths 16 64 128 512 --seconds 200",
    ),
    "attention of MiniLM": ("attention.py", "--model MiniLM --lengths 16 64 128 --seconds 8", "--seconds 40"),
    "attention of MiniLM, small context": (
        "attention.py",
        "--model MiniLM --context-size 64 --lengths 16 64 128 --seconds 8",
        "--seconds 40",
    ),
    "merging": ("merging.py", "--seconds 3", "--seconds 30"),
    "encode": ("encoding.py", "--models MiniLM --seconds 10", "--models MiniLM NomicBERT --seconds 60"),
    "forms": ("precision.py", "--batch-sizes 1 --seconds 15", "--batch-sizes 1 16 --seconds 60"),
}


def run_table(name: str, is_full: bool) -> str:
    """Runs one benchmark and returns its table."""
    script, arguments, changes = TABLES[name]
    command = [sys.executable, str(FOLDER / script), *arguments.split(), *(changes.split() if is_full else [])]
    if name == "attention":
        command += ["--plot", str(PLOT)]
    # Some virtual machines report AMX but do not run it, and a bfloat16 matrix product then ends the process.
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout


def put_table(page: str, name: str, table: str) -> str:
    """The page with another table in the place of one."""
    start = f"<!-- table: {name} -->\n"
    pattern = f"{re.escape(start)}.*?<!-- end of table -->"
    if not re.search(pattern, page, re.DOTALL):
        raise ValueError(
            f"The page has no place for the table `{name}`. Add `{start.strip()}` and `<!-- end of table -->` to it."
        )
    return re.sub(pattern, lambda _: f"{start}\n{table}\n<!-- end of table -->", page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="run the whole grid with more rounds")
    parser.add_argument("--tables", choices=list(TABLES), nargs="+", default=list(TABLES), help="which tables to make")
    args = parser.parse_args()
    for name in tqdm(args.tables, "Benchmarks"):
        table = run_table(name, args.full)
        # One by one, so that an interrupted run leaves what it has measured.
        PAGE.write_text(put_table(PAGE.read_text(), name, table))


if __name__ == "__main__":
    main()
