"""What the commands share: loading of models, common options."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CORPUS_HELP = (
    "table (JSONL, JSON, CSV, TSV, Parquet), text file (one document per line), folder of tables or text files, "
    "folder of a retrieval set, or Hub name"
)
MODEL_HELP = "a sentence-transformers model by folder or Hub name; `minilm` needs no download"


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(action.default)})"
        return super()._get_help_string(action)


def _whole_number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
    return int(text)


# Types of options.
positive = partial(_whole_number, least=1)  # a count
natural = partial(_whole_number, least=0)  # a seed, or a number that may be 0
several = partial(_whole_number, least=2)  # texts that are compared with one another


def load_model(name: str, args: argparse.Namespace) -> "SentenceTransformer":
    """Loads a model. Its own code runs only if the user allows it."""
    from sentence_transformers import SentenceTransformer

    from .. import model_path
    from ..model_names import named_model

    try:
        with named_model(name):
            return SentenceTransformer(model_path(name), trust_remote_code=args.trust_remote_code)
    except ValueError as error:
        if not args.trust_remote_code and "trust_remote_code=True" in str(error):
            raise ValueError(
                f"`{name}` contains code of its own. If you trust it, add `--trust-remote-code`."
            ) from error
        raise ValueError(f"`{name}` cannot be loaded as a model: {error}") from error


def read_corpus(path: Path, args: argparse.Namespace) -> "str | dict[str, str]":
    """Returns what reads the corpus at a path or Hub name: the name, or the documents if their column was named."""
    from ..data import load_corpus

    return str(path) if args.text_column is None else load_corpus(str(path), text_column=args.text_column)


def add_text_column_argument(command: argparse._ActionsContainer) -> None:
    """Adds the option of all commands that read a corpus."""
    command.add_argument(
        "--text-column",
        metavar="NAME",
        help="column of the documents in a table (default: text, document, or the only column of texts)",
    )


def add_columns_argument(command: argparse._ActionsContainer) -> None:
    """Adds the option of all commands that read pairs."""
    command.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="OURS=THEIRS",
        help="column names of pairs, such as query=question document=answer domain=subdomain",
    )


def refuse_older(path: Path, args: argparse.Namespace, *, exists: bool) -> None:
    """Refuses to replace a file or folder of an earlier run, unless the user wants it replaced."""
    if exists and not args.overwrite:
        raise FileExistsError(f"`{path}` exists already. Give another name, or replace it with `--overwrite`.")


def add_overwrite_argument(command: argparse._ActionsContainer) -> None:
    """Adds the option of all commands that could replace what an earlier run wrote."""
    command.add_argument("--overwrite", action="store_true", help="replace the output of an earlier run")


def add_trust_argument(command: argparse._ActionsContainer) -> None:
    """Adds the option of all commands that load checkpoints."""
    command.add_argument(
        "--trust-remote-code", action="store_true", help="run the code that a checkpoint contains; CDE models need it"
    )


__all__ = [
    "CORPUS_HELP",
    "MODEL_HELP",
    "HelpFormatter",
    "add_columns_argument",
    "add_overwrite_argument",
    "add_text_column_argument",
    "add_trust_argument",
    "load_model",
    "natural",
    "positive",
    "refuse_older",
    "read_corpus",
    "several",
]
