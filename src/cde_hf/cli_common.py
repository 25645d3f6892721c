"""What the commands share: how they speak, and how they find models."""

import argparse
import os
import sys
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODEL_HELP = "a sentence-transformers model by folder or Hub name; `minilm` needs no download"


def say(text: str) -> None:
    """Writes a line for the user. Of several processes, the first one speaks."""
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(text + "\n")


def load_model(name: str, args: argparse.Namespace) -> "SentenceTransformer":
    """Opens a model, running its code only if the user allows it."""
    from sentence_transformers import SentenceTransformer

    from . import model_path

    try:
        return SentenceTransformer(model_path(name), trust_remote_code=args.trust_remote_code)
    except ValueError as error:
        raise ValueError(f"`{name}` could not be opened as a model: {error}") from error


def add_trust_argument(command: argparse.ArgumentParser) -> None:
    """The option that every command has that opens checkpoints."""
    command.add_argument(
        "--trust-remote-code", action="store_true", help="run the code inside of checkpoints, as CDE models need"
    )


__all__ = ["MODEL_HELP", "add_trust_argument", "load_model", "say"]
