"""What the commands share: output, loading of models, common options."""

import argparse
import os
import sys
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODEL_HELP = "a sentence-transformers model by folder or Hub name; `minilm` needs no download"


def say(text: str) -> None:
    """Writes a line for the user, from the first process only."""
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(text + "\n")


def load_model(name: str, args: argparse.Namespace) -> "SentenceTransformer":
    """Loads a model. Its own code runs only if the user allows it."""
    from sentence_transformers import SentenceTransformer

    from .. import model_path

    try:
        return SentenceTransformer(model_path(name), trust_remote_code=args.trust_remote_code)
    except ValueError as error:
        if not args.trust_remote_code and "trust_remote_code=True" in str(error):
            raise ValueError(
                f"`{name}` contains code of its own. If you trust it, add `--trust-remote-code`."
            ) from error
        raise ValueError(f"`{name}` cannot be loaded as a model: {error}") from error


def add_trust_argument(command: argparse.ArgumentParser) -> None:
    """Adds the option of all commands that load checkpoints."""
    command.add_argument(
        "--trust-remote-code", action="store_true", help="run the code that a checkpoint contains; CDE models need it"
    )


__all__ = ["MODEL_HELP", "add_trust_argument", "load_model", "say"]
