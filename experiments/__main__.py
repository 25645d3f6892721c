"""
The experiments on real data, each one command.

    python -m experiments T1 --data DATA
    python -m experiments T1 --data DATA --quick
    python -m experiments T1 --report

`--data` is a folder with `train/*.jsonl.gz` (pairs, a file for each domain) and `eval/*` (retrieval sets in the layout
of BEIR). Runs are kept in `runs/experiments` under a hash of everything they depend on, so an interrupted experiment
resumes. Its table, plots and page go to `docs/results`. `--report` makes plots and pages from the tables, without a
run.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path


# Before torch is imported. Some virtual machines report AMX but do not run it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from . import (
    batches,
    context_path,
    contexts,
    corpus_part,
    divergence,
    drift,
    first_stage,
    frequencies,
    frequency_pooling,
    frequency_scale,
    grid,
    groupings,
    main_table,
    margins,
    mechanism,
    movement,
    negatives,
    neighbours,
    own_pairs,
    proxy,
)
from .runner.experiment import Experiment, Setting, write_page, write_results, write_summary
from .runner.workspace import Workspace


PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "docs" / "results"
RUNS = PROJECT / "runs" / "experiments"
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        main_table.EXPERIMENT,
        contexts.KINDS,
        contexts.MATRIX,
        contexts.CURVE,
        frequencies.EXPERIMENT,
        frequency_pooling.EXPERIMENT,
        frequency_scale.EXPERIMENT,
        corpus_part.EXPERIMENT,
        proxy.EXPERIMENT,
        batches.SIZES,
        groupings.EXPERIMENT,
        grid.EXPERIMENT,
        batches.PACKING,
        first_stage.LAYERS_EXPERIMENT,
        first_stage.TOKENS_EXPERIMENT,
        movement.EXPERIMENT,
        divergence.EXPERIMENT,
        neighbours.EXPERIMENT,
        negatives.EXPERIMENT,
        margins.EXPERIMENT,
        drift.EXPERIMENT,
        mechanism.EXPERIMENT,
        context_path.EXPERIMENT,
        own_pairs.EXPERIMENT,
    )
}


def make_parser() -> argparse.ArgumentParser:
    """The command line, whose help lists the experiments."""
    listed = "\n".join(
        f"  {each.name:<18} {each.title} ({_duration(each.minutes)})\n  {'':<18} {each.claim}"
        for each in EXPERIMENTS.values()
    )
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        epilog=f"experiments, with an estimate of their time on two free cores:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = [*EXPERIMENTS, "all"]
    parser.add_argument("names", nargs="+", metavar="EXPERIMENT", choices=choices, help="names, or `all`")
    parser.add_argument("--data", type=Path, help="folder of the data; `mechanism` needs none")
    parser.add_argument(
        "--encoders",
        nargs="+",
        default=[],
        type=Path,
        help="more sentence-transformers models for `corpus-part` and `frequency-scale`",
    )
    parser.add_argument("--seeds", type=int, help="seeds of each trained model (default: 2; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="check in minutes that it runs, in a temporary folder")
    parser.add_argument("--report", action="store_true", help="only make plots and pages from the tables")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of tables (default: docs/results)")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of runs (default: runs/experiments)")
    return parser


def main() -> None:
    args = make_parser().parse_args()
    if args.quick:
        temporary = Path(tempfile.mkdtemp(prefix="experiments-"))
        args.runs, args.results = temporary / "runs", temporary / "results"
    names = list(EXPERIMENTS) if "all" in args.names else args.names
    workspace = Workspace(args.runs, args.data, tuple(args.encoders))
    setting = Setting(workspace, args.seeds or (1 if args.quick else 2), args.quick)
    for name in names:
        experiment = EXPERIMENTS[name]
        if not args.report:
            write_results(experiment, setting, args.results)
        data = " --data DATA" if experiment.needs == "data" else ""
        write_page(experiment, args.results, f"python -m experiments {name}{data}")
    write_summary(list(EXPERIMENTS.values()), args.results)
    sys.stdout.write(f"Results are in {args.results}.\n")


def _duration(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.0f} hours"


if __name__ == "__main__":
    main()
