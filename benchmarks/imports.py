"""
Measures what a user waits for before anything happens: `import cde_hf` and `cde-hf --help`.

    python benchmarks/imports.py

Reports the best processor time of several runs, and its ratio to `import torch` in the same run.
"""

import argparse
import resource
import subprocess
import sys


COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import cde_hf": ["-c", "import cde_hf"],
    "cde-hf --help": ["-m", "cde_hf.cli", "--help"],
}
BARE = ["-c", ""]


def processor_seconds(arguments: list[str]) -> float:
    """Processor time of a new Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=5, help="number of runs of each; the best one counts (default: 5)"
    )
    args = parser.parse_args()
    best = {
        name: min(processor_seconds(command) for _ in range(args.rounds))
        for name, command in {"python": BARE, **COMMANDS}.items()
    }
    lines = ["| | processor time beyond a bare Python | ratio to `import torch` |", "|---|---|---|"]
    for name in COMMANDS:
        seconds = best[name] - best["python"]
        lines.append(f"| `{name}` | {seconds:.2f} s | {seconds / (best['import torch'] - best['python']):.2f} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
