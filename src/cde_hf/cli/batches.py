"""The commands `prepare` and `inspect`: batch plans."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..messages import count_of, say
from .common import (
    MODEL_HELP,
    HelpFormatter,
    add_columns_argument,
    add_overwrite_argument,
    natural,
    positive,
    refuse_older,
    several,
)


if TYPE_CHECKING:
    from .. import SentenceTransformerSurrogate, TfidfSurrogate
    from ..batching.costs import PlanCosts


def prepare(args: argparse.Namespace) -> None:
    """Makes a batch plan."""
    from .. import docstring_split, prepare_batch_plan
    from ..batching import KMeansSettings, format_statistics
    from ..batching.batch_plan import BATCH_PLAN
    from ..batching.costs import estimate_costs
    from ..data import PairSource, load_sources, parse_columns

    BATCH_PLAN.refuse_foreign(args.plan)  # before the data is read
    if args.data == ["docstrings"]:
        dataset, _ = docstring_split()
    else:
        columns = parse_columns(args.columns)
        dataset = load_sources([PairSource(source, columns=columns, split=args.split) for source in args.data])
    settings: dict[str, Any] = {
        "surrogate": _surrogate(args.surrogate, args),
        "filter_surrogate": _surrogate(args.filter_surrogate, args) if args.filter_surrogate else None,
        "cluster_size": args.cluster_size,
        "clustering": KMeansSettings(args.iterations, args.starts, spherical=args.spherical, seed=args.seed),
        "dtype": args.dtype,
    }
    if args.dry_run:
        say(_format_costs(estimate_costs(dataset, **settings)))
        return
    plan = prepare_batch_plan(dataset, args.plan, **settings)
    say(format_statistics(plan))
    say(f"\nWrote {args.plan}. Look at it with `cde-hf inspect {args.plan}`.")


def inspect(args: argparse.Namespace) -> None:
    """Prints the statistics of a batch plan and writes a page about it."""
    from .. import BatchPlan
    from ..batching import format_batch, format_statistics, write_inspection_page

    page = args.html or args.plan.with_suffix(".html")
    refuse_older(page, args, exists=page.exists() and "<title>Batch plan" not in page.read_text(errors="replace"))
    plan = BatchPlan.load(args.plan, verify=args.verify)
    write_inspection_page(plan, page)
    say(f"{format_statistics(plan)}\n\n{format_batch(plan)}")
    say(f"\nWrote {page}: open it in a browser.")


def _format_costs(costs: "PlanCosts") -> str:
    return (
        f"{count_of(costs.num_pairs, 'pair')}, about {count_of(costs.num_clusters, 'cluster')}. "
        "The plan will take about:\n"
        f"  disk    {costs.disk / 1e9:.3g} GB\n"
        f"  memory  {costs.memory / 1e9:.3g} GB in the main process, and the surrogate in each\n"
        f"  time    {costs.encoding_hours:.2g} hours to encode, divided by the number of processes, and "
        f"{costs.clustering_hours:.2g} to cluster\n"
        "It was not written."
    )


def _surrogate(name: str, args: argparse.Namespace) -> "TfidfSurrogate | SentenceTransformerSurrogate":
    from .. import SentenceTransformerSurrogate, TfidfSurrogate, model_path
    from ..model_names import named_model

    if name == "tfidf":
        return TfidfSurrogate(dim=args.surrogate_dim, seed=args.seed)
    with named_model(name):
        return SentenceTransformerSurrogate(model_path(name), max_length=args.max_length)


def add_prepare(commands: argparse._SubParsersAction) -> None:
    """Adds the command `prepare`."""
    command = commands.add_parser(
        "prepare",
        help="cluster training pairs into a batch plan",
        description="Embeds all queries and documents with a cheap surrogate model and clusters the pairs of each "
        "domain, so that batches can be filled with similar pairs. If interrupted, run the same command again to "
        "resume. On several GPUs: accelerate launch -m cde_hf.cli prepare ...",
        epilog="example: cde-hf prepare docstrings plan --surrogate tfidf --cluster-size 256",
        formatter_class=HelpFormatter,
    )
    command.add_argument(
        "data",
        metavar="DATA",
        nargs="+",
        help="tables (JSONL, JSON, CSV, TSV, Parquet), folders or Hub names; or `docstrings`, which needs no download",
    )
    command.add_argument("plan", metavar="PLAN", type=Path, help="folder to write")
    command.add_argument(
        "--dry-run", action="store_true", help="only print what disk, memory and time the plan will take"
    )
    data = command.add_argument_group("data")
    add_columns_argument(data)
    data.add_argument("--split", default="train", help="split of a data set on disk or on the Hub")
    surrogate = command.add_argument_group("surrogate")
    surrogate.add_argument("--surrogate", default="tfidf", help=f"`tfidf`, or {MODEL_HELP}")
    surrogate.add_argument("--filter-surrogate", help="another model for the false-negative filter")
    surrogate.add_argument("--surrogate-dim", type=positive, default=128, help="dimensions of the `tfidf` vectors")
    surrogate.add_argument("--max-length", type=positive, help="tokens that a surrogate model reads of a text")
    surrogate.add_argument("--dtype", choices=["float16", "float32"], default="float16", help="precision on disk")
    clusters = command.add_argument_group("clusters")
    clusters.add_argument("--cluster-size", type=several, default=256, help="target cluster size, in pairs")
    clusters.add_argument("--iterations", type=positive, default=100, help="k-means iterations")
    clusters.add_argument("--starts", type=positive, default=6, help="k-means starts; the best one is kept")
    clusters.add_argument("--spherical", action="store_true", help="use spherical k-means")
    clusters.add_argument("--seed", type=natural, default=0, help="random seed")
    command.set_defaults(run=prepare, resumes=True)


def add_inspect(commands: argparse._SubParsersAction) -> None:
    """Adds the command `inspect`."""
    command = commands.add_parser(
        "inspect",
        help="show the contents of a batch plan",
        description="Prints the statistics of a batch plan and some queries of a batch, and writes one HTML page with "
        "cluster sizes, hardness, filtered negatives, and sample clusters with their texts.",
        epilog="example: cde-hf inspect plan --html plan.html",
    )
    command.add_argument(
        "plan", metavar="PLAN", type=Path, help="folder of the batch plan, such as OUTPUT_DIR/plan of a training"
    )
    command.add_argument("--verify", action="store_true", help="compare the hashes of all files, not only their sizes")
    command.add_argument("--html", type=Path, help="page to write (default: PLAN.html)")
    add_overwrite_argument(command)
    command.set_defaults(run=inspect)


__all__ = ["add_inspect", "add_prepare"]
