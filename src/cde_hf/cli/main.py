"""The parser of the command `cde-hf`, and what happens to errors."""

import argparse
import logging
import re
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches

from .. import __version__
from ..messages import printable
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


_COMMANDS = {
    "adapt a model to a corpus": (add_contextualize, add_evaluate),
    "search": (add_index, add_search, add_encode),
    "train": (_add_train, add_prepare, add_inspect),
    "publish": (add_push, add_export_onnx, add_convert),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="cde-hf",
        description="Adapts embedding models to a corpus, and trains and runs contextual document embeddings.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cde-hf {__version__}")
    parser.set_defaults(verbose=False, resumes=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help="one of these:")
    lines = []
    for title, add_commands in _COMMANDS.items():
        lines.append(f"{title}:")
        for add_command in add_commands:
            add_command(commands)
            (command,) = commands._choices_actions  # shown in groups, which argparse has for options alone
            lines.append(f"  {command.dest:15}{command.help}")
            commands._choices_actions.clear()
    parser.epilog = "\n".join([*lines, "", "example: cde-hf evaluate minilm --corpus corpus.jsonl"])
    for each in commands.choices.values():
        each.set_defaults(parser=each)  # for errors
    # Before the command or after it. A command must not reset what was given before it, so it has no default.
    for each in (parser, *commands.choices.values()):
        each.add_argument(
            "--verbose", action="store_true", default=argparse.SUPPRESS, help="log progress and show full tracebacks"
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. Expected errors are one line, all others keep their traceback."""
    parser = build_parser()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given:
        parser.print_help()
        return
    given = [re.sub(r"^--[\w-]+", lambda name: name[0].replace("_", "-"), each) for each in given]
    args, rest = parser.parse_known_args(given)
    args.rest = rest
    if args.rest and args.run is not train:
        options = [option for action in args.parser._actions for option in action.option_strings]
        near = "".join(f". Did you mean {each}?" for each in get_close_matches(args.rest[0], options, 1))
        args.parser.error(f"unrecognized arguments: {' '.join(args.rest)}{near}")
    if args.verbose:
        package_logger = logging.getLogger("cde_hf")
        package_logger.setLevel(logging.INFO)
        package_logger.addHandler(logging.StreamHandler())
    try:
        args.run(args)
    except (OSError, ValueError, ImportError) as error:
        if args.verbose or not _is_expected(error):
            raise
        message = str(error) if isinstance(error, ImportError) else _in_options(str(error), args, given)
        missing = error.__cause__ or error  # a lazy name raises an error of its own
        if args.run is train and isinstance(missing, ModuleNotFoundError):
            message = f"{missing}. Training needs the extra `train`: `pip install 'cde-hf[train]'`."
        parser.exit(1, f"cde-hf: {printable(message)}\n")
    except KeyboardInterrupt:
        if args.verbose:
            raise
        kept = " What was complete is kept: run the same command again." if args.resumes else ""
        parser.exit(130, f"\ncde-hf: interrupted.{kept}\n")


def _in_options(message: str, args: argparse.Namespace, given: Sequence[str]) -> str:
    """Names options where an error names the Python arguments, but not where it names what the user gave."""
    names = set(vars(args))
    if args.run is train:
        from ..trainer.script import TrainingArgumentParser

        names = {action.dest for action in TrainingArgumentParser()._actions}

    def to_option(match: re.Match) -> str:
        name, value = match[1], match[2]
        if name in given or "_" not in name or name not in names:
            return match[0]
        return f"`--{name.replace('_', '-')}{'' if value in (None, 'True') else f' {value}'}`"

    return re.sub(r"`(\w+)(?:=([\w.-]+))?`", to_option, message)


def _is_expected(error: Exception) -> bool:
    """Whether an error is about the user's input: a file, a missing package, or a value that this package refused."""
    if not isinstance(error, ValueError):
        return True
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    package = (frame.f_globals.get("__package__") or "").partition(".")[0]
    return package in ("cde_hf", "transformers_modules")  # the latter is a checkpoint's own copy of our code


__all__ = ["build_parser", "main"]
