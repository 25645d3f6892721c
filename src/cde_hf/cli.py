"""The command `cde-hf`: one function per command, each a thin layer over public functions."""

import argparse
import logging
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .cli_common import MODEL_HELP, add_trust_argument, load_model, say
from .cli_publish import add_export_onnx, add_push
from .cli_search import add_encode, add_index, add_search


if TYPE_CHECKING:
    from . import Evaluation, SentenceTransformerSurrogate, TfidfSurrogate
    from .data import PseudoRetrievalSet


def convert(args: argparse.Namespace) -> None:
    """Writes a released checkpoint in the layout of this package."""
    from transformers import AutoTokenizer

    from . import CDEModel, Prompts, save_checkpoint

    model = CDEModel.from_pretrained(args.source)
    tokenizer_files = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
    if Path(args.source).is_dir() and not any((Path(args.source) / name).exists() for name in tokenizer_files):
        model.save_pretrained(args.destination)
        say(f"{args.source} has no tokenizer, so {args.destination} has none either and serves AutoModel alone.")
    else:
        prompts = Prompts(classification="classification: ", clustering="clustering: ")  # of the released models
        # The code of the released checkpoints is not needed, so it is neither run nor asked for.
        tokenizer = AutoTokenizer.from_pretrained(args.source, trust_remote_code=False)
        save_checkpoint(model, tokenizer, args.destination, prompts=prompts)
    say(f"Wrote {args.destination}: {model.num_parameters():,} parameters.")


def prepare(args: argparse.Namespace) -> None:
    """Makes a batch plan."""
    from . import docstring_split, prepare_batch_plan
    from .batching import KMeansSettings, format_statistics
    from .data import PairSource, load_sources

    if args.data == ["docstrings"]:
        dataset, _ = docstring_split()
    else:
        columns = dict(_name_and_column(pair) for pair in args.columns)
        dataset = load_sources([PairSource(source, columns=columns, split=args.split) for source in args.data])
    plan = prepare_batch_plan(
        dataset,
        args.plan,
        surrogate=_surrogate(args.surrogate, args),
        filter_surrogate=_surrogate(args.filter_surrogate, args) if args.filter_surrogate else None,
        cluster_size=args.cluster_size,
        clustering=KMeansSettings(args.iterations, args.starts, spherical=args.spherical, seed=args.seed),
        dtype=args.dtype,
    )
    say(format_statistics(plan))
    say(f"\nWrote {args.plan}. Look at it with `cde-hf inspect {args.plan}`.")


def evaluate(args: argparse.Namespace) -> None:
    """Scores models on retrieval sets."""
    from . import BM25, load_retrieval_set
    from . import evaluate as evaluate_systems
    from .data import load_documents, pseudo_retrieval_set
    from .retrieval import CONTEXTS

    retrieval_sets = [load_retrieval_set(folder) for folder in args.data]
    proxies = [pseudo_retrieval_set(f"{path.name} (proxy)", path, seed=args.seed) for path in args.corpus]
    paths = [Path(context) for context in args.context if context not in CONTEXTS]
    if len({path.name for path in paths}) < len(paths):
        raise ValueError(f"Files of `--context` need different names, got {' '.join(map(str, paths))}. Rename one.")
    systems = [BM25()]
    for name in [args.model, *args.compare]:
        systems += _systems(name, args)
    evaluation = evaluate_systems(
        systems,
        [*retrieval_sets, *proxies],
        contexts=[context for context in args.context if context in CONTEXTS],
        other_contexts={path.name: load_documents(path) for path in paths},
        context_size=args.context_size,
        seed=args.seed,
    )
    baseline = next(row for row in evaluation.rows if row.system == Path(args.model).name)
    if proxies:
        say(_describe_proxies(proxies))
    for metric in args.metrics:
        say(evaluation.to_markdown(metric, baseline=baseline))
    say(f"* differs significantly from {baseline} (paired randomisation test, p < 0.05)")
    if args.json is not None:
        evaluation.save(args.json)
        say(f"Wrote {args.json}.")
    if proxies:
        say(effect_of_context(evaluation, Path(args.model).name, args.metrics[0]))


def _describe_proxies(proxies: Sequence["PseudoRetrievalSet"]) -> str:
    counts = {
        "titles": sum(proxy.num_titles for proxy in proxies),
        "sentences": sum(proxy.num_sentences for proxy in proxies),
    }
    queries = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    return (
        f"This is a proxy made from the corpus, with {queries} of its documents as queries. It is not judged "
        "relevance.\nThe differences between the rows matter, not the height of the scores.\n"
    )


def effect_of_context(evaluation: "Evaluation", name: str, metric: str) -> str:
    """Says in a sentence whether a context of the corpus itself changes the scores of a model."""
    rows = [row for row in evaluation.rows if row.system in (name, f"{name} contextualized")]
    without = next((row for row in rows if row.system == name and row.context in (None, "none")), None)
    contextual = next((row for row in rows if row.context == "own"), None)
    if without is None or contextual is None:
        return (
            f"The effect of the context shows in two rows of {name}, with it and without it: use `--context own none`."
        )
    comparison = evaluation.compare(without, contextual, metric=metric)
    change = f"{metric.upper()} by {100 * comparison.difference:+.1f} (p = {comparison.p_value:.2g})"
    if not comparison.is_significant:
        return f"On this proxy, contextualizing makes no significant difference: it changes {change}."
    return f"On this proxy, contextualizing {'gains' if comparison.difference > 0 else 'loses'}: it changes {change}."


def contextualize(args: argparse.Namespace) -> None:
    """Adapts a sentence-transformers model to a corpus."""
    from . import contextualize as contextualize_model

    model = load_model(args.model, args)
    sizes = {"corpus_dim": args.corpus_dim, "size": args.size}
    contextualized = contextualize_model(model, args.corpus, seed=args.seed, **sizes)
    contextualized.save(str(args.output))
    say(f"Wrote {args.output}: load it with SentenceTransformer('{args.output}', trust_remote_code=True).")


def train(args: argparse.Namespace) -> None:
    """Trains a model."""
    from . import run_training

    run_training(args.rest)


def _systems(name: str, args: argparse.Namespace) -> list:
    """The rows of a model: a contextual model; or a plain model unchanged, whitened and contextualized."""
    from . import ContextualModelEmbedder, SentenceTransformerEmbedder, contextualize
    from .contextual_models import find_contextual_module
    from .retrieval import RememberingEmbedder, WhitenedEmbedder

    model = load_model(name, args)
    title = Path(name).name
    if find_contextual_module(model) is not None:
        return [ContextualModelEmbedder(model, title, batch_size=args.batch_size)]
    plain = RememberingEmbedder(SentenceTransformerEmbedder(model, title, batch_size=args.batch_size))
    systems = [plain, WhitenedEmbedder(plain, f"{title} whitened")]
    try:
        contextualized = contextualize(model, None)
        systems.append(ContextualModelEmbedder(contextualized, f"{title} contextualized", batch_size=args.batch_size))
    except ValueError as error:
        say(f"{title} is not contextualized: {error}")
    return systems


def inspect(args: argparse.Namespace) -> None:
    """Prints the statistics of a batch plan and writes a page about it."""
    from . import BatchPlan
    from .batching import format_statistics, write_inspection_page

    plan = BatchPlan.load(args.plan)
    page = args.html or args.plan.with_suffix(".html")
    write_inspection_page(plan, page)
    say(format_statistics(plan))
    say(f"\nWrote {page}: open it in a browser.")


def _name_and_column(pair: str) -> tuple[str, str]:
    name, is_pair, column = pair.partition("=")
    if not is_pair:
        raise ValueError(f"`--columns` takes pairs such as query=question, got `{pair}`.")
    return name, column


def _surrogate(name: str, args: argparse.Namespace) -> "TfidfSurrogate | SentenceTransformerSurrogate":
    from . import SentenceTransformerSurrogate, TfidfSurrogate, model_path

    if name == "tfidf":
        return TfidfSurrogate(dim=args.surrogate_dim, seed=args.seed)
    return SentenceTransformerSurrogate(model_path(name), max_length=args.max_length)


def _add_convert(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "convert",
        help="write a released checkpoint in the layout of this package",
        description="Reads a checkpoint in the layout of jxm/cde-small-v1 or -v2 and writes it in ours, with the code "
        "files, so that AutoModel.from_pretrained(DESTINATION, trust_remote_code=True) works without cde-hf.",
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
        "domain, so that batches can be filled with similar pairs. If interrupted, run the same command again to "
        "resume. On several GPUs: accelerate launch -m cde_hf.cli prepare ...",
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
        help="column names, such as query=question document=answer domain=subdomain",
    )
    data.add_argument("--split", default="train", help="split of a Hub data set")
    surrogate = command.add_argument_group("surrogate")
    surrogate.add_argument("--surrogate", default="tfidf", help=f"`tfidf`, or {MODEL_HELP}")
    surrogate.add_argument("--filter-surrogate", help="another model for the false-negative filter")
    surrogate.add_argument("--surrogate-dim", type=int, default=128, help="dimensions of the `tfidf` vectors")
    surrogate.add_argument("--max-length", type=int, help="tokens that a surrogate model reads of a text")
    surrogate.add_argument("--dtype", choices=["float16", "float32"], default="float16", help="precision on disk")
    clusters = command.add_argument_group("clusters")
    clusters.add_argument("--cluster-size", type=int, default=256, help="target cluster size, in pairs")
    clusters.add_argument("--iterations", type=int, default=100, help="k-means iterations")
    clusters.add_argument("--starts", type=int, default=6, help="k-means starts; the best one is kept")
    clusters.add_argument("--spherical", action="store_true", help="use spherical k-means")
    clusters.add_argument("--seed", type=int, default=0, help="random seed")
    command.set_defaults(run=prepare)


def _add_inspect(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "inspect",
        help="show the contents of a batch plan",
        description="Prints the statistics of a batch plan and writes one HTML page with cluster sizes, hardness, "
        "filtered negatives, and sample clusters with their texts.",
        epilog="example: cde-hf inspect plan --html plan.html",
    )
    command.add_argument("plan", metavar="PLAN", type=Path, help="folder of the batch plan")
    command.add_argument("--html", type=Path, help="page to write (default: PLAN.html)")
    command.set_defaults(run=inspect)


def _add_evaluate(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "evaluate",
        help="score models on retrieval sets",
        description="Scores BM25 and models on retrieval sets in BEIR layout. Contextual models get documents of the "
        "set (own), of the next set (foreign), of all other sets (random), or none, with a row for each. A plain "
        "model is also whitened, and contextualized, with the same documents. Without labels, --corpus makes queries "
        "from the documents.",
        epilog="example: cde-hf evaluate minilm --data nfcorpus scifact --context own foreign none --json scores.json",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    data = command.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", nargs="+", default=[], metavar="FOLDER", help="folders of retrieval sets")
    data.add_argument(
        "--corpus",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help="corpora without queries, as files or folders: titles or sentences of their documents are the queries",
    )
    command.add_argument("--compare", nargs="+", default=[], metavar="MODEL", help="more models to score")
    command.add_argument(
        "--context", nargs="+", default=["own"], help="own, foreign, random, none, or a file or folder of documents"
    )
    command.add_argument("--context-size", type=int, help="context documents to sample (default: all)")
    command.add_argument("--metrics", nargs="+", default=["ndcg@10"], help="any of ndcg@10, mrr@10, recall@100")
    command.add_argument("--batch-size", type=int, default=32, help="number of texts to encode at once")
    command.add_argument("--seed", type=int, default=0, help="seed of the sample")
    command.add_argument("--json", type=Path, help="file for the scores of every query")
    add_trust_argument(command)
    command.set_defaults(run=evaluate)


def _add_contextualize(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "contextualize",
        help="adapt a sentence-transformers model to a corpus",
        description="Saves a sentence-transformers model with context-frequency pooling and a corpus part, which are "
        "fitted to the corpus. It needs neither labels nor training, and encodes about as fast as before.",
        epilog="example: cde-hf contextualize minilm corpus.jsonl minilm-corpus",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    command.add_argument(
        "corpus", metavar="CORPUS", type=Path, help="text or JSONL file, or folder of a retrieval set"
    )
    command.add_argument("output", metavar="OUT", type=Path, help="folder to write")
    command.add_argument("--corpus-dim", type=int, default=256, help="dimensions of the corpus part, 0 for none")
    command.add_argument("--size", type=int, help="number of documents to sample (default: up to 50,000)")
    command.add_argument("--seed", type=int, default=0, help="seed of the sample and of the fit")
    add_trust_argument(command)
    command.set_defaults(run=contextualize)


def _add_train(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "train",
        help="train a contextual model or a biencoder",
        add_help=False,  # `run_training` parses the arguments and prints their help
    )
    command.set_defaults(run=train)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="cde-hf", description="Contextual document embeddings.")
    parser.add_argument("--version", action="version", version=f"cde-hf {__version__}")
    parser.set_defaults(verbose=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_command in (_add_convert, _add_prepare, _add_inspect, _add_train, _add_evaluate, _add_contextualize):
        add_command(commands)
    for add_command in (add_encode, add_index, add_search, add_export_onnx, add_push):
        add_command(commands)
    # Before the command or after it. A command must not reset what was given before it, so it has no default.
    for each in (parser, *commands.choices.values()):
        each.add_argument(
            "--verbose", action="store_true", default=argparse.SUPPRESS, help="log progress and show full tracebacks"
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. Expected errors are one line, all others keep their traceback."""
    parser = build_parser()
    args, rest = parser.parse_known_args(arguments)
    args.rest = rest
    if args.rest and args.run is not train:
        parser.error(f"unrecognized arguments: {' '.join(args.rest)}")
    if args.verbose:
        package_logger = logging.getLogger("cde_hf")
        package_logger.setLevel(logging.INFO)
        package_logger.addHandler(logging.StreamHandler())
    try:
        args.run(args)
    except (OSError, ValueError, ImportError) as error:
        if args.verbose or not _is_expected(error):
            raise
        parser.exit(1, f"cde-hf: {error}\n")


def _is_expected(error: Exception) -> bool:
    """Whether an error is about the user's input: a file, a missing package, or a value that this package refused."""
    if not isinstance(error, ValueError):
        return True
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    package = (frame.f_globals.get("__package__") or "").partition(".")[0]
    return package in (__package__, "transformers_modules")  # the latter is a checkpoint's own copy of our code


if __name__ == "__main__":
    main()
