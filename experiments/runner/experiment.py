"""An experiment: a claim, runs that test it, a table of results, and a page that is made from the table alone."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from .files import write_text
from .table import Row, read_table, write_table
from .workspace import Workspace


matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "cde-hf"  # the same picture is the same file

_KEPT_HEADING = "## What we do with it"


@dataclass(frozen=True)
class Setting:
    """
    How an experiment is to be run.

    Args:
        workspace (`Workspace`):
            Data and runs.
        num_seeds (`int`, *optional*, defaults to `2`):
            Seeds of each trained model.
        is_quick (`bool`, *optional*, defaults to `False`):
            Whether only to test that it runs.
    """

    workspace: Workspace
    num_seeds: int = 2
    is_quick: bool = False


@dataclass(frozen=True)
class Page:
    """
    What a table says.

    Args:
        finding (`str`):
            One sentence.
        text (`str`):
            Setting, tables and the comparison with the paper, in Markdown.
        figures (`dict[str, Figure]`):
            Plots by the end of their file's name.
    """

    finding: str
    text: str
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """
    One table or figure of the paper, or a question of our own.

    Args:
        name (`str`):
            Its name on the command line and in file names.
        title (`str`):
            What it is about.
        claim (`str`):
            What the paper, or we, say.
        minutes (`float`):
            About how long it takes on two cores.
        run (`Callable`):
            Gives the rows of the table.
        report (`Callable`):
            Makes the page from the rows.
        needs (`str`, *optional*, defaults to `"data"`):
            `"data"`, or `"nothing"` if it does without a folder of data.
    """

    name: str
    title: str
    claim: str
    minutes: float
    run: Callable[[Setting], Sequence[Row]]
    report: Callable[[list[Row]], Page]
    needs: str = "data"


def write_results(experiment: Experiment, setting: Setting, folder: Path) -> None:
    """Runs an experiment and writes its table."""
    write_table(folder / f"{experiment.name}.csv", experiment.run(setting))


def write_page(experiment: Experiment, folder: Path, command: str) -> Page:
    """
    Makes the page and the plots of an experiment from its table.

    Text under `What we do with it` is written by hand and kept.
    """
    page = experiment.report(read_table(folder / f"{experiment.name}.csv"))
    path = folder / f"{experiment.name}.md"
    parts = [f"# {experiment.title}", f"**Claim.** {experiment.claim}", f"**Finding.** {page.finding}"]
    for name, figure in page.figures.items():
        file_name = f"{experiment.name}_{name}.svg"
        figure.savefig(folder / file_name, bbox_inches="tight", metadata={"Date": None})
        parts.append(f"![{experiment.title}: {name}]({file_name})")
    parts.append(page.text.strip())
    parts.append(f"Made by `{command}`, from the table [{experiment.name}.csv]({experiment.name}.csv).")
    kept = re.search(rf"^{re.escape(_KEPT_HEADING)}\n.*", _read(path), re.DOTALL | re.MULTILINE)
    if kept:
        parts.append(kept[0].strip())
    write_text(path, "\n\n".join(parts) + "\n")
    sys.stdout.write(f"{path}: {page.finding}\n")
    return page


def write_summary(experiments: Sequence[Experiment], folder: Path) -> None:
    """
    Makes the table of the summary page from the tables of all experiments that were run.

    It stands between two comments. Text around them is written by hand and kept.
    """
    lines = ["| experiment | claim | finding |", "|---|---|---|"]
    for experiment in experiments:
        path = folder / f"{experiment.name}.csv"
        if path.exists():
            finding = experiment.report(read_table(path)).finding
            lines.append(f"| [{experiment.name}]({experiment.name}.md) | {experiment.claim} | {finding} |")
    start, end = "<!-- findings -->", "<!-- end of findings -->"
    page = _read(folder / "README.md") or f"# Results\n\n{start}\n{end}\n"
    table = "\n".join([start, *lines, end])
    write_text(folder / "README.md", re.sub(f"{start}.*?{end}", lambda _: table, page, flags=re.DOTALL))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
