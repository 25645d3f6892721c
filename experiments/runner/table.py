"""
The results of an experiment: one table on disk, in long format, from which its page is made.

A row has a value and what it belongs to: mostly the run, the seed, the factors that the experiment varies, the
retrieval set and the context.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from .files import write_text


Row = dict[str, str | int | float]


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows, which all have the same columns."""
    if not rows:
        raise ValueError(f"There is no result to write to `{path}`. Run the experiment first.")
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()})
    write_text(path, buffer.getvalue())


def read_table(path: Path) -> list[Row]:
    """Reads rows; what looks like a number is one."""
    if not path.exists():
        raise FileNotFoundError(f"There is no table `{path}`. Run the experiment first, without `--report`.")
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: _number(value) for name, value in row.items()} for row in csv.DictReader(file)]


def select(rows: Iterable[Row], **values: str | int | float) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def seed_means(rows: Iterable[Row], value: str = "ndcg@10") -> dict[int, float]:
    """For each seed the mean over its rows, which are those of one system on several sets."""
    values: dict[int, list[float]] = {}
    for row in rows:
        values.setdefault(row["seed"], []).append(row[value])
    return {seed: fmean(values[seed]) for seed in sorted(values)}


def seed_gains(low: dict[int, float], high: dict[int, float]) -> tuple[float, ...]:
    """Points that one system is above another, seed by seed, from their means by seed."""
    return tuple(high[seed] - low[seed] for seed in low)


def mean_and_spread(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard deviation, which is 0 of one value."""
    values = list(values)
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def show(values: Iterable[float]) -> str:
    """Mean ± standard deviation as a cell of a table; of one value the value alone."""
    values = list(values)
    mean, spread = mean_and_spread(values)
    return f"{mean:.1f} ± {spread:.1f}" if len(values) > 1 else f"{mean:.1f}"


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    parts = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in parts)


def pivot(
    rows: Sequence[Row], line: Callable[[Row], str], column: str, value: str = "ndcg@10"
) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a table of means over seeds: a line for each name, a column for each value of a column."""
    columns = list(dict.fromkeys(str(row[column]) for row in rows))
    names = list(dict.fromkeys(line(row) for row in rows))
    lines = []
    for name in names:
        own = [row for row in rows if line(row) == name]
        cells = [[row[value] for row in own if str(row[column]) == each] for each in columns]
        lines.append(
            [name, *(f"{fmean(cell):.1f}" if cell else "" for cell in cells), show(seed_means(own, value).values())]
        )
    return [*columns, "mean"], lines


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
