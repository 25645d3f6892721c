"""The command `cde-hf`: one function per command, each a thin layer over public functions."""

import argparse
import sys
from collections.abc import Sequence

from transformers import AutoTokenizer

from . import CDEModel, __version__


def convert(args: argparse.Namespace) -> None:
    """Writes a released checkpoint in the layout of this package."""
    model = CDEModel.from_pretrained(args.source)
    model.save_pretrained(args.destination)
    try:
        AutoTokenizer.from_pretrained(args.source).save_pretrained(args.destination)
    except (OSError, ValueError):
        _say(f"{args.source} has no tokenizer, so {args.destination} has none either.")
    _say(f"Wrote {args.destination}: {model.num_parameters():,} parameters.")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="cde-hf", description="Contextual document embeddings.")
    parser.add_argument("--version", action="version", version=f"cde-hf {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

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
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    try:
        args.run(args)
    except (OSError, ValueError) as error:
        parser.exit(1, f"cde-hf: {error}\n")


if __name__ == "__main__":
    main()
