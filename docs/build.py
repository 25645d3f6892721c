"""
Builds the documentation site into build/site, strictly: a broken link, image or reference is an error.

1. `build/pages` gets the pages as they are laid out in the project, so that their links work in both places.
2. The pages that nobody writes are generated: the reference of the public names and of the command line, and the
   notebook.
3. mkdocs builds the site. It reads the code, but does not run it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import griffe

import cde_hf
from cde_hf.cli import build_parser


ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
NOTEBOOK = ROOT / "examples" / "notebooks" / "adapt_to_your_corpus.ipynb"
# Methods that only transformers calls. It documents them.
CALLED_BY_TRANSFORMERS = re.compile(r"validate_\w+|get_config_dict|[gs]et_input_embeddings")
# `PreTrainedConfig` makes the constructor from the fields, which a reader of the code cannot see.
UNSEEN = {"CDEConfig": "\n    options:\n      docstring_options:\n        warn_unknown_params: false"}
FIRST_PARTS = ("contextual_models", "index", "encoding", "evaluation", "modeling", "saving", "data")
COPIED = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples")


def undocumented(package: griffe.Object) -> list[str]:
    """The public names, and public methods of public classes, that have no docstring."""
    missing = []
    for name in cde_hf.__all__:
        member = package[name]
        methods = [each for each in member.members.values() if each.is_function and not each.name.startswith("_")]
        methods = [each for each in methods if not CALLED_BY_TRANSFORMERS.fullmatch(each.name)]
        missing += [each.path for each in (member, *methods) if not each.has_docstring]
    return missing


def _place(module: str) -> int:
    """Where a module stands on the page: what most people need comes first."""
    part = module.split(".")[1]
    return FIRST_PARTS.index(part) if part in FIRST_PARTS else len(FIRST_PARTS)


def python_reference() -> str:
    """One section for each subpackage, one entry for each public name."""
    package = griffe.load("cde_hf", search_paths=[ROOT / "src"])
    if missing := undocumented(package):
        raise SystemExit(f"These public names have no docstring: {', '.join(missing)}. Write one for each.")
    names: dict[str, list[str]] = {}
    for name in cde_hf.__all__:
        names.setdefault(package[name].target_path.rpartition(".")[0], []).append(name)
    parts = ["# Python", "All of these names are imported from `cde_hf`."]
    for module, members in sorted(names.items(), key=lambda item: _place(item[0])):
        title = module.rpartition(".")[2].replace("_", " ").capitalize()
        summary, *_ = griffe.load(module, search_paths=[ROOT / "src"]).docstring.value.split("\n\n")
        parts += [f"## {title}", summary]
        parts += [f"::: cde_hf.{name}{UNSEEN.get(name, '')}" for name in members]
    return "\n\n".join(parts) + "\n"


def command_line_reference() -> str:
    """The help of every command."""
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = ["# Command line", f"```text\n{parser.format_help()}```"]
    for name, command in commands.choices.items():
        text = command.format_help()
        if name == "train":  # its arguments are those of the trainer, which `run_training` parses
            command_line = [sys.executable, "-m", "cde_hf.cli", "train", "--help"]
            text = subprocess.run(command_line, capture_output=True, text=True, check=True).stdout
        parts += [f"## cde-hf {name}", f"```text\n{text}```"]
    return "\n\n".join(parts) + "\n"


def notebook_page(path: Path) -> str:
    """A notebook with its outputs, in Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            text = "".join(output.get("text") or output.get("data", {}).get("text/plain", ()))
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Builds the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    (PAGES / "reference").mkdir(parents=True)
    for name in COPIED:
        (PAGES / name).symlink_to(ROOT / name)
    os.environ["COLUMNS"] = "80"  # the width of the help
    (PAGES / "reference" / "python.md").write_text(python_reference(), encoding="utf-8")
    (PAGES / "reference" / "command-line.md").write_text(command_line_reference(), encoding="utf-8")
    (PAGES / "start.md").write_text(notebook_page(NOTEBOOK), encoding="utf-8")
    # Material prints a notice about the next version of mkdocs, which is not our concern.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--clean",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
