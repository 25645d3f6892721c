"""The commands `export-onnx` and `push`."""

import argparse
import json
from pathlib import Path

from .cli_common import add_trust_argument, load_model, say


def export_onnx(args: argparse.Namespace) -> None:
    """Writes a contextual model to ONNX."""
    from . import export_onnx as export
    from .retrieval import load_documents

    model = load_model(args.model, args)
    if args.context is not None:
        model[0].set_context(load_documents(args.context), seed=args.seed)
    export(model, args.output, context_as_input=args.context_as_input, quantize=args.int8)
    say(f"Wrote {args.output}: load it with SentenceTransformer('{args.output}', trust_remote_code=True).")


def push(args: argparse.Namespace) -> None:
    """Publishes a checkpoint on the Hub."""
    from . import Evaluation, push_to_hub
    from .model_card import CardFacts

    evaluation, settings = None, {}
    if args.scores is not None:
        evaluation = Evaluation.from_json(args.scores.read_text(encoding="utf-8"))
    if args.settings is not None:
        settings = json.loads(args.settings.read_text(encoding="utf-8"))
    facts = CardFacts(
        base_model=args.base_model,
        datasets=args.datasets,
        language=args.language,
        license=args.license,
        settings=settings,
        evaluation=evaluation,
    )
    place = push_to_hub(args.folder, args.repo, facts=facts, private=args.private, dry_run=args.dry_run)
    if args.dry_run is not None:
        say(f"Wrote {place}: exactly what would be uploaded. Nothing was.")
    else:
        say(f"Published {place}")


def add_export_onnx(commands: argparse._SubParsersAction) -> None:
    """Adds the command `export-onnx`."""
    command = commands.add_parser(
        "export-onnx",
        help="write a contextual model to ONNX",
        description="Exports the second stage of a CDE checkpoint to ONNX, with the context of a corpus, for "
        "onnxruntime alone or inside of sentence-transformers.",
        epilog="example: cde-hf export-onnx my-model my-onnx --context corpus.jsonl --int8 --trust-remote-code",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", metavar="MODEL", help="folder or Hub name of a CDE checkpoint")
    command.add_argument("output", metavar="OUT", type=Path, help="folder to write")
    command.add_argument("--context", type=Path, help="corpus to draw the context from, if none is saved inside")
    command.add_argument("--seed", type=int, default=0, help="seed of the draw")
    command.add_argument(
        "--context-as-input", action="store_true", help="make the context an input of the graph, to be changed later"
    )
    command.add_argument("--int8", action="store_true", help="quantise the weights to int8")
    add_trust_argument(command)
    command.set_defaults(run=export_onnx)


def add_push(commands: argparse._SubParsersAction) -> None:
    """Adds the command `push`."""
    command = commands.add_parser(
        "push",
        help="publish a checkpoint on the Hub",
        description="Writes a card and uploads a checkpoint in one commit. Training state, pickles and hidden files "
        "stay behind, and a file that holds an access token stops it. Log in first with `hf auth login`.",
        epilog="example: cde-hf push my-model me/my-model --scores scores.json --dry-run upload",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("folder", metavar="FOLDER", type=Path, help="the checkpoint")
    command.add_argument("repo", metavar="REPO", help="name of the repository, user/name")
    command.add_argument("--dry-run", metavar="OUT", type=Path, help="write what would be uploaded to a new folder")
    command.add_argument("--private", action="store_true", help="make a new repository private")
    card = command.add_argument_group("card")
    card.add_argument("--base-model", help="Hub name of the encoder that training started from")
    card.add_argument("--datasets", nargs="+", default=[], help="names of the training data")
    card.add_argument("--language", nargs="+", default=[], help="codes of the languages, such as en")
    card.add_argument("--license", help="its code, such as apache-2.0")
    card.add_argument("--scores", type=Path, help="file that `cde-hf evaluate --json` wrote")
    card.add_argument("--settings", type=Path, help="JSON file with an object: the settings of the training")
    command.set_defaults(run=push)


__all__ = ["add_export_onnx", "add_push"]
