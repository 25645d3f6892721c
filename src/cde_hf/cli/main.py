"""The parser of the command `cde-hf`, and what happens to errors."""

import argparse
import logging
import traceback
from collections.abc import Sequence

from .. import __version__
from .batches import add_inspect, add_prepare
from .evaluate import add_contextualize, add_evaluate
from .publish import add_convert, add_export_onnx, add_push
from .search import add_encode, add_index, add_search


def train(args: argparse.Namespace) -> None:
    """Trains a model."""
    from .. import run_training

    run_training(args.rest)


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
    for add_command in (add_convert, add_prepare, add_inspect, _add_train, add_evaluate, add_contextualize):
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
    return package in ("cde_hf", "transformers_modules")  # the latter is a checkpoint's own copy of our code


__all__ = ["build_parser", "main"]
