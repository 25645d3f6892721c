"""The command `cde-hf`: one function per command, each a thin layer over public functions."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils import logging

from . import (
    BatchPlan,
    CDEModel,
    GraphSettings,
    KMeansSettings,
    PairSource,
    SentenceTransformerSurrogate,
    TfidfSurrogate,
    __version__,
    docstring_split,
    format_statistics,
    load_sources,
    prepare_batch_plan,
    save_checkpoint,
    write_inspection_page,
)


def convert(args: argparse.Namespace) -> None:
    """Writes a released checkpoint in the layout of this package."""
    model = CDEModel.from_pretrained(args.source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.source)
    except (OSError, ValueError):
        model.save_pretrained(args.destination)
        _say(f"{args.source} has no tokenizer, so {args.destination} has none either and serves AutoModel alone.")
    else:
        save_checkpoint(model, tokenizer, args.destination)
    _say(f"Wrote {args.destination}: {model.num_parameters():,} parameters.")


def prepare(args: argparse.Namespace) -> None:
    """Makes a batch plan."""
    if args.data == ["docstrings"]:
        dataset, _ = docstring_split()
    else:
        columns = dict(pair.split("=", 1) for pair in args.columns)
        dataset = load_sources([PairSource(source, columns=columns, split=args.split) for source in args.data])
    if args.backend == "graph":
        clustering = GraphSettings(seed=args.seed)
    else:
        clustering = KMeansSettings(args.iterations, args.starts, spherical=args.spherical, seed=args.seed)
    plan = prepare_batch_plan(
        dataset,
        args.plan,
        surrogate=_surrogate(args.surrogate, args),
        filter_surrogate=_surrogate(args.filter_surrogate, args) if args.filter_surrogate else None,
        cluster_size=args.cluster_size,
        clustering=clustering,
        dtype=args.dtype,
    )
    _say(format_statistics(plan))
    _say(f"\nWrote {args.plan}. Look at it with `cde-hf inspect {args.plan}`.")


def inspect(args: argparse.Namespace) -> None:
    """Prints the statistics of a batch plan and writes a page about it."""
    plan = BatchPlan.load(args.plan)
    page = args.html or args.plan.with_suffix(".html")
    write_inspection_page(plan, page)
    _say(format_statistics(plan))
    _say(f"\nWrote {page}: open it in a browser.")


def _surrogate(name: str, args: argparse.Namespace) -> TfidfSurrogate | SentenceTransformerSurrogate:
    if name == "tfidf":
        return TfidfSurrogate(dim=args.surrogate_dim, seed=args.seed)
    return SentenceTransformerSurrogate(name, max_length=args.max_length)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _add_convert(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "convert",
        help="write a released checkpoint in the layout of this package",
        description="Reads a checkpoint in the layout of jxm/cde-small-v1 or -v2 and writes it in ours, with the code "
        "files, so that AutoModel.from_pretrained(DESTINATION, trust_remote_code=True) works without this package.",
        epilog="example: cde-hf convert jxm/cde-small-v1 cde-small-v1",
    )
    command.add_argument("source", metavar="SOURCE", help="folder or Hub name of the checkpoint to read")
    command.add_argument("destination", metavar="DESTINATION", help="folder to write")
    command.set_defaults(run=convert)


def _add_prepare(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "prepare",
        help="cluster training pairs into a batch plan",
        description="Embeds all queries and documents with a cheap surrogate model and clusters the pairs of each "
        "domain, so that batches can be made of neighbours. Interrupted and started again, it goes on where it was. "
        "On several processes or GPUs: accelerate launch -m cde_hf.cli prepare ...",
        epilog="example: cde-hf prepare docstrings plan --surrogate tfidf --cluster-size 256",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument(
        "data",
        metavar="DATA",
        nargs="+",
        help="JSONL, Parquet or CSV files, folders or Hub names; or `docstrings`, which needs no download",
    )
    command.add_argument("plan", metavar="PLAN", type=Path, help="folder to write")
    data = command.add_argument_group("data")
    data.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="OURS=THEIRS",
        help="names of the columns, such as query=question document=answer domain=subdomain",
    )
    data.add_argument("--split", default="train", help="split of a Hub data set")
    surrogate = command.add_argument_group("surrogate")
    surrogate.add_argument("--surrogate", default="tfidf", help="`tfidf`, or a sentence-transformers model")
    surrogate.add_argument("--filter-surrogate", help="another one for the false-negative filter")
    surrogate.add_argument("--surrogate-dim", type=int, default=128, help="width of the vectors of `tfidf`")
    surrogate.add_argument("--max-length", type=int, help="tokens that a surrogate model reads of a text")
    surrogate.add_argument("--dtype", choices=["float16", "float32"], default="float16", help="precision on disk")
    clusters = command.add_argument_group("clusters")
    clusters.add_argument("--cluster-size", type=int, default=512, help="wanted number of pairs in a cluster")
    clusters.add_argument("--backend", choices=["kmeans", "graph"], default="kmeans", help="how to cluster")
    clusters.add_argument("--iterations", type=int, default=100, help="iterations of k-means")
    clusters.add_argument("--starts", type=int, default=3, help="starts of k-means, of which the best counts")
    clusters.add_argument("--spherical", action="store_true", help="k-means by inner product")
    clusters.add_argument("--seed", type=int, default=0, help="seed of all draws")
    command.set_defaults(run=prepare)


def _add_inspect(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "inspect",
        help="show what is in a batch plan",
        description="Prints the statistics of a batch plan and writes one HTML page with cluster sizes, hardness, "
        "filtered negatives, and sample clusters with their texts.",
        epilog="example: cde-hf inspect plan --html plan.html",
    )
    command.add_argument("plan", metavar="PLAN", type=Path, help="folder of the batch plan")
    command.add_argument("--html", type=Path, help="page to write (default: PLAN.html)")
    command.set_defaults(run=inspect)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="cde-hf", description="Contextual document embeddings.")
    parser.add_argument("--version", action="version", version=f"cde-hf {__version__}")
    parser.add_argument("--verbose", action="store_true", help="tell more on the way")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_command in (_add_convert, _add_prepare, _add_inspect):
        add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.verbose:
        logging.set_verbosity_info()
    try:
        args.run(args)
    except (OSError, ValueError, ImportError) as error:
        parser.exit(1, f"cde-hf: {error}\n")


if __name__ == "__main__":
    main()
