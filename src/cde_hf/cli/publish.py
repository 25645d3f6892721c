"""The commands `convert`, `export-onnx` and `push`."""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..messages import say
from .common import (
    HelpFormatter,
    add_overwrite_argument,
    add_text_column_argument,
    add_trust_argument,
    load_model,
    natural,
    read_corpus,
    refuse_older,
)


def export_onnx(args: argparse.Namespace) -> None:
    """Writes a contextual model to ONNX."""
    from .. import export_onnx as export
    from .. import set_context
    from ..onnx import ONNX

    refuse_older(args.output, args, exists=ONNX.is_in(args.output))
    ONNX.refuse_foreign(args.output)  # before the model is read
    model = load_model(args.model, args)
    if args.context is not None:
        set_context(model, read_corpus(args.context, args), seed=args.seed)
    export(model, args.output, context_as_input=args.context_as_input, quantize=args.int8)
    say(
        f"Wrote {args.output}, whose embeddings have {model.get_embedding_dimension()} dimensions: load it with "
        f"SentenceTransformer('{args.output}', trust_remote_code=True)."
    )


def push(args: argparse.Namespace) -> None:
    """Publishes a checkpoint on the Hub."""
    from .. import Evaluation, push_to_hub
    from ..model_card import CardFacts

    evaluation, settings = None, {}
    if args.scores is not None:
        evaluation = Evaluation.load(args.scores)
    if args.settings is not None:
        settings = _read_settings(args.settings)
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
        _list_files(args.folder, args.dry_run)
        say(f"Wrote {place}: exactly the files to publish. Nothing was uploaded.")
    else:
        say(f"Published {place}")


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"`{path}` cannot be read as one JSON object ({error}). Fix it.") from error


def _list_files(folder: Path, upload: Path) -> None:
    """Lists what a dry run copied and what it left out, with the files of a subfolder counted."""
    published = {path.relative_to(upload) for path in upload.rglob("*") if path.is_file()}
    say(f"{'bytes':>15}  file")
    for path in sorted(published):
        say(f"{(upload / path).stat().st_size:15,}  {path}")
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    left_out = Counter(path.parts[0] if len(path.parts) == 1 else f"{path.parts[0]}/" for path in files - published)
    names = [f"{name} ({count})" if name.endswith("/") else name for name, count in sorted(left_out.items())]
    say(f"Not published, because not part of a checkpoint: {', '.join(names) or 'nothing'}")


def convert(args: argparse.Namespace) -> None:
    """Writes a released checkpoint in the layout of this package."""
    from transformers import AutoTokenizer

    from .. import CDEModel, Prompts, model_path, save_checkpoint
    from ..files import CHECKPOINT
    from ..model_names import named_model

    refuse_older(args.destination, args, exists=CHECKPOINT.is_in(args.destination))
    with CHECKPOINT.locked(args.destination):
        with named_model(args.source):
            source = model_path(args.source)
            model = CDEModel.from_pretrained(source)
        tokenizer_files = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
        if Path(source).is_dir() and not any((Path(source) / name).exists() for name in tokenizer_files):
            with CHECKPOINT.replacing(args.destination) as new_folder:
                model.save_pretrained(new_folder)
            say(f"{args.source} has no tokenizer, so {args.destination} has none either and serves AutoModel alone.")
        else:
            prompts = Prompts(classification="classification: ", clustering="clustering: ")  # of the released models
            # The code of the released checkpoints is not needed, so it is neither run nor asked for.
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            save_checkpoint(model, tokenizer, args.destination, prompts=prompts)
    say(
        f"Wrote {args.destination}: {model.num_parameters():,} parameters. Load it with "
        f"AutoModel.from_pretrained('{args.destination}', trust_remote_code=True)."
    )


def add_convert(commands: argparse._SubParsersAction) -> None:
    """Adds the command `convert`."""
    command = commands.add_parser(
        "convert",
        help="write a released checkpoint in the layout of this package",
        description="Reads a checkpoint in the layout of jxm/cde-small-v1 or -v2 and writes it in ours, with the code "
        "files, so that AutoModel.from_pretrained(DESTINATION, trust_remote_code=True) works without cde-hf.",
        epilog="example: cde-hf convert jxm/cde-small-v1 cde-small-v1",
    )
    command.add_argument("source", metavar="SOURCE", help="folder or Hub name of the checkpoint to read")
    command.add_argument("destination", metavar="DESTINATION", help="folder to write")
    add_overwrite_argument(command)
    command.set_defaults(run=convert)


def add_export_onnx(commands: argparse._SubParsersAction) -> None:
    """Adds the command `export-onnx`."""
    command = commands.add_parser(
        "export-onnx",
        help="write a contextual model to ONNX",
        description="Exports a contextualized model, or the second stage of a CDE checkpoint, to ONNX, together with "
        "the context of a corpus. The folder runs in text-embeddings-inference and fastembed without this package, in "
        "sentence-transformers, or in onnxruntime alone.",
        epilog="example: cde-hf export-onnx my-model my-onnx --context corpus.jsonl --int8 --trust-remote-code",
        formatter_class=HelpFormatter,
    )
    command.add_argument("model", metavar="MODEL", help="folder or Hub name of a contextual model")
    command.add_argument("output", metavar="OUT", type=Path, help="folder to write")
    command.add_argument("--context", type=Path, help="corpus to sample the context from; default: the saved context")
    add_text_column_argument(command)
    command.add_argument("--seed", type=natural, default=0, help="seed of the sampling")
    command.add_argument(
        "--context-as-input",
        action="store_true",
        help="make the context of a CDE checkpoint a graph input, so that it can be changed; not for servers",
    )
    command.add_argument("--int8", action="store_true", help="quantize the weights to int8")
    add_overwrite_argument(command)
    add_trust_argument(command)
    command.set_defaults(run=export_onnx)


def add_push(commands: argparse._SubParsersAction) -> None:
    """Adds the command `push`."""
    command = commands.add_parser(
        "push",
        help="publish a checkpoint on the Hub",
        description="Writes a model card and uploads a checkpoint in one commit. Only the files of the checkpoint are "
        "published: weights, settings, tokenizer, code, context, card and license. Training data, training state, "
        "logs and all other files in the folder stay local. A context is published as vectors and token counts, "
        "without its texts. An access token in a file stops the upload, and so does a symbolic link. Log in with "
        "`hf auth login` first.",
        epilog="example: cde-hf push my-model me/my-model --scores scores.json --dry-run upload",
        formatter_class=HelpFormatter,
    )
    command.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the checkpoint")
    command.add_argument("repo", metavar="REPO", help="name of the repository, user/name")
    command.add_argument(
        "--dry-run",
        metavar="OUT",
        type=Path,
        help="upload nothing: copy the files to a new folder and list them",
    )
    command.add_argument("--private", action="store_true", help="make a new repository private")
    card = command.add_argument_group("card")
    card.add_argument("--base-model", help="Hub name of the encoder that training started from")
    card.add_argument("--datasets", nargs="+", default=[], help="names of the training datasets")
    card.add_argument("--language", nargs="+", default=[], help="language codes, such as en")
    card.add_argument("--license", help="license code, such as apache-2.0")
    card.add_argument("--scores", type=Path, help="file that `cde-hf evaluate --json` wrote")
    card.add_argument("--settings", type=Path, help="JSON file with the training settings, as one object")
    command.set_defaults(run=push)


__all__ = ["add_convert", "add_export_onnx", "add_push"]
