"""The commands `evaluate` and `contextualize`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..messages import count_of, say
from .common import (
    CORPUS_HELP,
    MODEL_HELP,
    HelpFormatter,
    add_columns_argument,
    add_overwrite_argument,
    add_text_column_argument,
    add_trust_argument,
    load_model,
    natural,
    positive,
    read_corpus,
    refuse_older,
)


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .. import Evaluation
    from ..data import PseudoRetrievalSet


def evaluate(args: argparse.Namespace) -> None:
    """Scores models on retrieval sets."""
    from .. import evaluate as evaluate_systems
    from .. import load_retrieval_set
    from ..data import load_documents, parse_columns, pseudo_retrieval_set
    from ..evaluation import CONTEXTS

    _check_arguments(args)
    columns = parse_columns(args.columns)
    retrieval_sets = [load_retrieval_set(source, columns=columns) for source in args.data]
    proxies = [
        pseudo_retrieval_set(f"{path.name} (proxy)", str(path), text_column=args.text_column, seed=args.seed)
        for path in args.corpus
    ]
    paths = [Path(context) for context in args.context or () if context not in CONTEXTS]
    if len({path.name for path in paths}) < len(paths):
        raise ValueError(f"Files of `--context` need different names, got {' '.join(map(str, paths))}. Rename one.")
    contexts = args.context or (["own", "foreign"] if len(retrieval_sets) + len(proxies) > 1 else ["own"])
    systems, compared_with = _systems([args.model, *args.compare], args)
    evaluation = evaluate_systems(
        systems,
        [*retrieval_sets, *proxies],
        contexts=[context for context in contexts if context in CONTEXTS],
        other_contexts={path.name: load_documents(path) for path in paths},
        context_size=args.context_size,
        seed=args.seed,
    )
    if args.json is not None:  # first, so that nothing is lost
        evaluation.save(args.json)
    first = {row.system: row for row in reversed(evaluation.rows)}
    baselines = {row: first[compared_with[row.system]] for row in evaluation.rows if row.system in compared_with}
    if proxies:
        say(_describe_proxies(proxies))
    for metric in args.metrics:
        say(evaluation.to_markdown(metric, baseline=baselines))
    compared = {row: baseline for row, baseline in baselines.items() if row != baseline}
    if compared:
        say("* differs significantly (paired randomisation test, p < 0.05). On the mean of the sets:")
    for row, baseline in compared.items():
        comparison = evaluation.compare(baseline, row, metric=args.metrics[0])
        say(f"{row} - {baseline}: {100 * comparison.difference:+.1f} (p = {comparison.p_value:.2g})")
    if args.json is not None:
        say(f"Wrote {args.json}: `cde-hf push ... --scores {args.json}` puts the scores into a model card.")
    if proxies:
        say(effect_of_context(evaluation, Path(args.model).name, args.metrics[0]))


def _check_arguments(args: argparse.Namespace) -> None:
    """Refuses what can be refused before anything is read or encoded."""
    from ..evaluation.metrics import METRICS, check_scorer
    from ..model_names import check_model_name

    check_scorer()
    for name in (args.model, *args.compare):
        check_model_name(name)
    unknown = [metric for metric in args.metrics if metric not in METRICS]
    if unknown:
        raise ValueError(f"There is no metric `{unknown[0]}`. Use one of {', '.join(METRICS)}.")
    strange = [context for context in args.context or () if context in ("foreign", "random")]
    if strange and len(args.data) + len(args.corpus) < 2:
        raise ValueError(
            f"A {strange[0]} context comes from another retrieval set, but there is only one. Give a second set, or "
            f"leave `{strange[0]}` out of `--context`."
        )
    if args.json is not None:
        refuse_older(args.json, args, exists=args.json.exists())


def _describe_proxies(proxies: Sequence["PseudoRetrievalSet"]) -> str:
    counts = {
        "title": sum(proxy.num_titles for proxy in proxies),
        "sentence": sum(proxy.num_sentences for proxy in proxies),
    }
    queries = " and ".join(count_of(count, kind) for kind, count in counts.items() if count)
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
    from .. import contextualize as contextualize_model
    from .. import save_with_context
    from ..files import CHECKPOINT

    refuse_older(args.output, args, exists=CHECKPOINT.is_in(args.output))
    with CHECKPOINT.locked(args.output):
        model = load_model(args.model, args)
        corpus = read_corpus(args.corpus, args)
        sizes = {"corpus_dim": args.corpus_dim, "size": args.size}
        save_with_context(contextualize_model(model, corpus, seed=args.seed, **sizes), args.output)
    say(f"Wrote {args.output}: load it with SentenceTransformer('{args.output}', trust_remote_code=True).")


def _systems(names: Sequence[str], args: argparse.Namespace) -> tuple[list, dict[str, str]]:
    """
    The systems of a table: BM25 on the tokens of the first model, and for each model its systems with one vector and
    their hybrids. Also what each of these is compared with: one vector with one vector, a hybrid with a hybrid.
    """
    from .. import BM25, ContextualModelEmbedder, SentenceTransformerEmbedder, contextualize
    from ..contextual_models import find_contextual_module
    from ..evaluation import Hybrid, RememberingEmbedder, WhitenedEmbedder
    from ..evaluation.systems import RememberingContextualEmbedder

    systems: list = []
    vectors: list[str] = []
    hybrids: list[str] = []

    def add(embedder: Any, tokenizer: Any) -> None:
        hybrid = Hybrid(embedder, tokenizer)
        systems.extend([embedder, hybrid])
        vectors.append(embedder.name)
        hybrids.append(hybrid.name)

    def contextual(model: "SentenceTransformer", title: str) -> Any:
        return RememberingContextualEmbedder(ContextualModelEmbedder(model, title, batch_size=args.batch_size))

    for name in names:
        model, title = load_model(name, args), Path(name).name
        if not systems:
            systems.append(BM25(model.tokenizer))
        if find_contextual_module(model) is not None:
            add(contextual(model, title), model.tokenizer)
            continue
        plain = RememberingEmbedder(SentenceTransformerEmbedder(model, title, batch_size=args.batch_size))
        add(plain, model.tokenizer)
        systems.append(WhitenedEmbedder(plain, f"{title} whitened"))
        vectors.append(systems[-1].name)
        try:
            add(contextual(contextualize(model, None), f"{title} contextualized"), model.tokenizer)
        except ValueError as error:
            say(f"{title} is not contextualized: {error}")
    return systems, dict.fromkeys(vectors, vectors[0]) | dict.fromkeys(hybrids, hybrids[0])


def add_evaluate(commands: argparse._SubParsersAction) -> None:
    """Adds the command `evaluate`."""
    command = commands.add_parser(
        "evaluate",
        help="score models on retrieval sets, or on a corpus without labels",
        description="Scores BM25 and models on retrieval sets in BEIR layout. A contextual model gets documents of "
        "the set (own), of the next set (foreign), of all other sets (random), or none, with a row for each. A plain "
        "model is also scored whitened and contextualized, with the same documents. Without labels, --corpus makes "
        "queries from the documents.",
        epilog="example: cde-hf evaluate minilm --data nfcorpus scifact --context own foreign none --json scores.json",
        formatter_class=HelpFormatter,
    )
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    group = command.add_argument_group("data, one of --data and --corpus")
    data = group.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--data", nargs="+", default=[], metavar="SET", help="folders of retrieval sets, or files of pairs"
    )
    data.add_argument(
        "--corpus",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help="corpora without queries, as files or folders: titles or sentences of their documents are the queries",
    )
    add_columns_argument(group)
    add_text_column_argument(group)
    group = command.add_argument_group("models")
    group.add_argument("--compare", nargs="+", default=[], metavar="MODEL", help="more models to score")
    group.add_argument("--batch-size", type=positive, default=32, help="number of texts to encode at once")
    add_trust_argument(group)
    group = command.add_argument_group("context")
    group.add_argument(
        "--context",
        nargs="+",
        help="own, foreign, random, none, or a file or folder of documents (default: own, and foreign if there are "
        "several sets)",
    )
    group.add_argument("--context-size", type=positive, help="context documents to sample (default: all)")
    group.add_argument("--seed", type=natural, default=0, help="seed of the sample")
    group = command.add_argument_group("output")
    group.add_argument("--metrics", nargs="+", default=["ndcg@10"], help="any of ndcg@10, mrr@10, recall@100")
    group.add_argument("--json", type=Path, help="file for the scores of every query")
    add_overwrite_argument(group)
    command.set_defaults(run=evaluate)


def add_contextualize(commands: argparse._SubParsersAction) -> None:
    """Adds the command `contextualize`."""
    command = commands.add_parser(
        "contextualize",
        help="adapt a sentence-transformers model to a corpus",
        description="Saves a sentence-transformers model with context-frequency pooling and a corpus part, which are "
        "fitted to the corpus. It needs neither labels nor training, and encodes about as fast as before.",
        epilog="example: cde-hf contextualize minilm corpus.jsonl minilm-corpus",
        formatter_class=HelpFormatter,
    )
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    command.add_argument("corpus", metavar="CORPUS", type=Path, help=CORPUS_HELP)
    add_text_column_argument(command)
    command.add_argument("output", metavar="OUT", type=Path, help="folder to write")
    command.add_argument("--corpus-dim", type=natural, default=256, help="dimensions of the corpus part, 0 for none")
    command.add_argument("--size", type=positive, help="number of documents to sample (default: up to 50,000)")
    command.add_argument("--seed", type=natural, default=0, help="seed of the sample and of the fit")
    add_overwrite_argument(command)
    add_trust_argument(command)
    command.set_defaults(run=contextualize)


__all__ = ["add_contextualize", "add_evaluate", "effect_of_context"]
