"""The commands `encode`, `index` and `search`."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..messages import count_of, say
from .common import (
    CORPUS_HELP,
    MODEL_HELP,
    HelpFormatter,
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

    from ..encoding import EncodedCorpus
    from ..index import SearchHit
    from ..index.side_by_side import ExplainedHit

_COLUMN_WIDTH = 58
_NUM_SHOWN_TERMS = 4


def encode(args: argparse.Namespace) -> None:
    """Encodes a corpus into Parquet files."""
    trust = " --trust-remote-code" if args.trust_remote_code else ""
    model = None if args.ray else _contextual_model(args)
    encoded = _encode_on_ray(args) if model is None else _encode(model, args, args.output)
    files = count_of(len(encoded.paths), "Parquet file")
    say(
        f"Wrote {args.output}: {count_of(len(encoded), 'document')} in {files}. Make an index with "
        f"`cde-hf index {args.model} {args.output} INDEX{trust}`.{'' if model is None else _describe_length(model)}"
    )


def index(args: argparse.Namespace) -> None:
    """Builds an index of a corpus."""
    from .. import ContextualIndex
    from ..encoding import EncodedCorpus
    from ..index.storage import INDEX
    from ..processes import process_state

    is_main = process_state().is_main_process
    refuse_older(args.output, args, exists=ContextualIndex.exists(args.output))
    with INDEX.locked(args.output) if is_main else nullcontext():
        model = _contextual_model(args)
        is_encoded = EncodedCorpus.exists(args.corpus)
        work = args.output / ".cde-hf.encoded"
        encoded = EncodedCorpus.load(args.corpus) if is_encoded else _encode(model, args, work)
        if is_main:
            built = ContextualIndex.from_encoded(encoded.model or model, encoded, kind=args.kind)
            built.save(args.output)
            if not is_encoded:
                shutil.rmtree(work)
            trust = " --trust-remote-code" if args.trust_remote_code else ""
            say(
                f"Wrote {args.output}: {count_of(len(built), 'document')}. Search it with "
                f"`cde-hf search {args.output}{trust}`.{_describe_length(model)}"
            )


def search(args: argparse.Namespace) -> None:
    """Searches an index for one query, or for every query that is typed."""
    from .. import ContextualIndex
    from ..index.side_by_side import SideBySide

    if args.query is not None and not args.query.strip():
        raise ValueError("The query is empty. Give a text, or leave it out and type queries.")
    name = args.model or ContextualIndex.read_model_name(args.index)
    if name is None:
        raise ValueError(f"`{args.index}` does not name its model. Give the model with `--model`.")
    if args.model is None and Path(name).is_absolute() and not Path(name).is_dir():
        raise FileNotFoundError(f"The model of `{args.index}` was in `{name}`, which is gone. Give it with `--model`.")
    found = ContextualIndex.load(args.index, load_model(name, args), verify=args.verify)
    both = SideBySide(found) if args.side_by_side else None
    queries = [args.query] if args.query is not None else _typed_queries(shows_prompt=not args.json)
    for query in queries:
        if both is None:
            hits = found.search(query, depth=args.depth)
            say(_in_json(query, [asdict(hit) for hit in hits]) if args.json else _in_lines(hits))
            continue
        explained, plain_hits = both.search(query, depth=args.depth)
        if args.json:
            rows = [{**asdict(each.hit), "plain_rank": each.plain_rank, "terms": each.terms} for each in explained]
            say(_in_json(query, rows, plain_hits=[asdict(hit) for hit in plain_hits]))
        else:
            say(_in_columns(explained, plain_hits))


def _contextual_model(args: argparse.Namespace) -> "SentenceTransformer":
    from .. import contextualize

    model = load_model(args.model, args)
    return contextualize(model, None) if args.contextualize else model


def _encode(model: "SentenceTransformer", args: argparse.Namespace, folder: Path) -> "EncodedCorpus":
    from .. import encode_corpus
    from ..data import ParquetCorpus

    sizes = {"batch_size": args.batch_size, "shard_size": args.shard_size}
    corpus = ParquetCorpus.open(args.corpus, text_column=args.text_column) or read_corpus(args.corpus, args)
    return encode_corpus(model, corpus, folder, seed=args.seed, **sizes)


def _encode_on_ray(args: argparse.Namespace) -> "EncodedCorpus":
    from ..data import ParquetCorpus
    from ..encoding_on_ray import encode_on_ray
    from ..model_names import check_model_name

    check_model_name(args.model)
    if Path(args.model).exists():  # the nodes may run in other folders
        args.model = str(Path(args.model).resolve())
    return encode_on_ray(
        partial(_contextual_model, args),
        ParquetCorpus.open(args.corpus, text_column=args.text_column) or args.corpus,
        args.output,
        address=args.ray,
        batch_size=args.batch_size,
        shard_size=args.shard_size,
        seed=args.seed,
    )


def _describe_length(model: "SentenceTransformer") -> str:
    return f" The model reads the first {model.max_seq_length} tokens of a document."


def _typed_queries(*, shows_prompt: bool) -> Iterator[str]:
    while True:
        if shows_prompt:
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _in_lines(hits: list["SearchHit"]) -> str:
    return "\n".join(
        f"{rank:3d}  {hit.score:.3f}  {hit.document_id}  {_short(hit.text, 100)}"
        for rank, hit in enumerate(hits, start=1)
    )


def _in_columns(hits: list["ExplainedHit"], plain_hits: list["SearchHit"]) -> str:
    rows = [f"     {'this index':{_COLUMN_WIDTH}} its model alone"]
    for rank, (each, plain_hit) in enumerate(zip(hits, plain_hits, strict=True), start=1):
        left, right = (
            f"{hit.score:.3f}  {_short(f'{hit.document_id}  {hit.text}', _COLUMN_WIDTH - 8)}"
            for hit in (each.hit, plain_hit)
        )
        rows.append(f"{rank:3d}  {left:{_COLUMN_WIDTH}} {right}")
        if each.plain_rank != rank:
            terms = ", ".join(f"{term} {points:+.3f}" for term, points in list(each.terms.items())[:_NUM_SHOWN_TERMS])
            rows.append(f"     was {each.plain_rank}{f': {_short(terms, _COLUMN_WIDTH)}' if terms else ''}")
    return "\n".join(rows)


def _in_json(query: str, hits: list[dict], **others: list[dict]) -> str:
    """A query and its hits on one line."""
    return json.dumps({"query": query, "hits": hits, **others})


def _short(text: str | None, width: int) -> str:
    # Control characters of a document could change what the terminal shows.
    line = " ".join("".join(each if each.isprintable() else " " for each in text or "").split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _add_encoding_arguments(command: argparse.ArgumentParser, *, corpus_help: str) -> None:
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    command.add_argument("corpus", metavar="CORPUS", type=Path, help=corpus_help)
    command.add_argument("output", metavar="OUT", type=Path, help="folder to write")
    add_text_column_argument(command.add_argument_group("corpus"))
    model = command.add_argument_group("model")
    model.add_argument(
        "--contextualize",
        action="store_true",
        help="adapt a plain model to this corpus first, as `cde-hf contextualize` does",
    )
    model.add_argument("--seed", type=natural, default=0, help="seed with which the context is sampled")
    add_trust_argument(model)
    encoding = command.add_argument_group("encoding")
    encoding.add_argument("--batch-size", type=positive, default=32, help="number of texts to encode at once")
    encoding.add_argument(
        "--shard-size",
        type=positive,
        default=1024,
        help="documents per output file, or per block of a Parquet file; an unfinished file is encoded again",
    )


def add_encode(commands: argparse._SubParsersAction) -> None:
    """Adds the command `encode`."""
    command = commands.add_parser(
        "encode",
        help="encode a corpus into Parquet files",
        description="Encodes a corpus into a folder of Parquet files with the columns id, text and vector, and saves "
        "the context. A contextual model without a context gets a sample of the corpus. Parquet files give one file "
        "each, so memory does not grow with the corpus. After an interruption, the same command resumes. On several "
        "processes or GPUs: accelerate launch -m cde_hf.cli encode ...",
        epilog="example: cde-hf encode minilm corpus.jsonl vectors --contextualize",
        formatter_class=HelpFormatter,
    )
    _add_encoding_arguments(command, corpus_help=CORPUS_HELP)
    command.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="encode Parquet files on a Ray cluster: its address, `auto` for the cluster on this machine, or `local` "
        "to start one",
    )
    command.set_defaults(run=encode, resumes=True)


def add_index(commands: argparse._SubParsersAction) -> None:
    """Adds the command `index`."""
    command = commands.add_parser(
        "index",
        help="build a searchable index of a corpus",
        description="Encodes a corpus and writes an index: vectors, documents and the context of the vectors. After "
        "an interruption, the same command resumes. CORPUS may also be the folder of `cde-hf encode`.",
        epilog="example: cde-hf index minilm corpus.jsonl my-index --contextualize",
        formatter_class=HelpFormatter,
    )
    _add_encoding_arguments(command, corpus_help=f"{CORPUS_HELP}, or the folder of `cde-hf encode`")
    index_options = command.add_argument_group("index")
    index_options.add_argument(
        "--kind",
        choices=["auto", "flat", "hnsw", "ivf"],
        default="auto",
        help="flat is exact; auto is flat up to 500,000 documents and hnsw beyond",
    )
    add_overwrite_argument(index_options)
    command.set_defaults(run=index, resumes=True)


def add_search(commands: argparse._SubParsersAction) -> None:
    """Adds the command `search`."""
    command = commands.add_parser(
        "search",
        help="search an index",
        description="Shows the best documents for a query. Without a query, it reads queries until the input ends. "
        "Queries are encoded with the context of the index.",
        epilog="example: cde-hf search my-index 'Who sleeps on the sofa?' --side-by-side",
        formatter_class=HelpFormatter,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="folder of the index")
    command.add_argument("query", metavar="QUERY", nargs="?", help="text to search for")
    command.add_argument("--depth", type=positive, default=10, help="number of documents to show")
    command.add_argument(
        "--side-by-side",
        action="store_true",
        help="also show how the plain model ranks the best documents, and which terms moved a document",
    )
    command.add_argument("--json", action="store_true", help="write each query and its hits as JSON, on one line")
    command.add_argument("--model", help="model of the index, if it was moved")
    command.add_argument("--verify", action="store_true", help="first compare the hashes of all files of the index")
    add_trust_argument(command)
    command.set_defaults(run=search)


__all__ = ["add_encode", "add_index", "add_search"]
