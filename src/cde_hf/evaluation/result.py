"""The result of an evaluation: every score, tables of means, and comparisons."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files import write_text
from .metrics import METRICS
from .significance import Comparison, compare_scores


Scores = dict[str, dict[str, float]]  # by metric and query


class Row(NamedTuple):
    """
    A row of an evaluation: a system in a context.

    Args:
        system (`str`):
            Name of the system.
        context (`str`, *optional*):
            Name of the context, as [`evaluate`] was given it: `"none"` for a contextual system without a context.
            `None` for a system that takes no context, such as BM25.

    Example:

    ```python
    >>> [str(row) for row in (Row("BM25"), Row("cde", "own"), Row("cde", "none"))]
    ['BM25', 'cde, own context', 'cde, no context']

    ```
    """

    system: str
    context: str | None = None

    def __str__(self) -> str:
        """Returns the label for tables and messages. Different rows can have the same label."""
        if self.context is None:
            return self.system
        return f"{self.system}, {'no' if self.context == 'none' else self.context} context"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """
    Scores of systems on retrieval sets, made by [`evaluate`].

    Args:
        scores (`dict[str, dict[Row, dict[str, dict[str, float]]]]`):
            Score between 0 and 1, by set, row, metric and query.
        foreign_sets (`dict[str, str]`):
            The set that each set took its foreign context from.
        context_size (`int` or `None`):
            Number of context documents, `None` for all documents.
        seed (`int`):
            Seed with which they were sampled.
    """

    scores: dict[str, dict[Row, Scores]]
    foreign_sets: dict[str, str]
    context_size: int | None
    seed: int

    def __repr__(self) -> str:
        means = ", ".join(f"{row}: {100 * self.mean(row):.1f}" for row in self.rows)
        return f"Evaluation(ndcg@10 on {', '.join(self.sets)}: {means})"

    @property
    def sets(self) -> list[str]:
        """Names of the sets."""
        return list(self.scores)

    @property
    def rows(self) -> list[Row]:
        """The rows. A contextual system has one for each context."""
        return list(next(iter(self.scores.values())))

    def mean(self, row: Row, *, retrieval_set: str | None = None, metric: str = "ndcg@10") -> float:
        """Mean score of a row on a set, or the average of these means over all sets."""
        return float(np.mean([np.mean(list(part.values())) for part in self._scores_of(row, retrieval_set, metric)]))

    def compare(
        self, first: Row, second: Row, *, retrieval_set: str | None = None, metric: str = "ndcg@10"
    ) -> Comparison:
        """Paired randomisation test between two rows, on one set or on all sets."""
        return compare_scores(*(self._scores_of(row, retrieval_set, metric) for row in (first, second)))

    def _scores_of(self, row: Row, retrieval_set: str | None, metric: str) -> list[dict[str, float]]:
        """Returns the scores of a row by query, for one set or for each set."""
        if metric not in METRICS:
            raise ValueError(f"There is no metric `{metric}`. Use one of {', '.join(METRICS)}.")
        if row not in self.rows:
            raise ValueError(f"There is no row {row!r}. Use one of {self.rows}.")
        names = self.sets if retrieval_set is None else [retrieval_set]
        return [self.scores[name][row][metric] for name in names]

    def join(self, other: "Evaluation") -> "Evaluation":
        """
        Joins the rows of two evaluations, for systems that were evaluated separately with different contexts.

        Args:
            other (`Evaluation`):
                An evaluation of other systems on the same queries, with the same context documents.
        """
        settings = [(part.sets, part.context_size, part.seed) for part in (self, other)]
        if settings[0] != settings[1] or set(self.rows) & set(other.rows):
            raise ValueError(
                "Only evaluations of different systems on the same sets in contexts of the same size and seed can be "
                f"joined, got {settings[0]} with {self.rows} and {settings[1]} with {other.rows}."
            )
        scores = {name: {**self.scores[name], **other.scores[name]} for name in self.sets}
        return replace(self, scores=scores, foreign_sets={**self.foreign_sets, **other.foreign_sets})

    def to_markdown(self, metric: str = "ndcg@10", *, baseline: Row | Mapping[Row, Row] | None = None) -> str:
        """
        Returns a table of the mean scores in percent, with a column for each set.

        Args:
            metric (`str`, *optional*, defaults to `"ndcg@10"`):
                One of `"ndcg@10"`, `"mrr@10"` and `"recall@100"`.
            baseline (`Row` or `Mapping[Row, Row]`, *optional*):
                Scores that differ significantly from this row's score (p < 0.05) get a star. Or the row that each row
                is compared with.
        """
        baselines = dict.fromkeys(self.rows, baseline) if isinstance(baseline, Row) else baseline or {}
        columns = [*self.sets, None]
        lines = [f"| {metric} | {' | '.join(self.sets)} | mean |", "|---" * (len(columns) + 1) + "|"]
        for row in self.rows:
            cells = [self._cell(row, name, metric, baselines.get(row)) for name in columns]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def _cell(self, row: Row, retrieval_set: str | None, metric: str, baseline: Row | None) -> str:
        score = f"{100 * self.mean(row, retrieval_set=retrieval_set, metric=metric):.1f}"
        if baseline is None or row == baseline:
            return score
        comparison = self.compare(baseline, row, retrieval_set=retrieval_set, metric=metric)
        return f"{score}*" if comparison.is_significant else score

    def to_json(self) -> str:
        """Returns all scores and settings, for [`Evaluation.from_json`]."""
        scores = {
            name: [{**row._asdict(), "scores": row_scores} for row, row_scores in rows.items()]
            for name, rows in self.scores.items()
        }
        return json.dumps({**vars(self), "scores": scores}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Reads the output of [`Evaluation.to_json`]."""
        try:
            content = json.loads(text)
            scores = {
                name: {Row(row["system"], row["context"]): row["scores"] for row in rows}
                for name, rows in content["scores"].items()
            }
            return cls(**{**content, "scores": scores})
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                "This is not an evaluation as this version of cde-hf saves it. Evaluate again, with `cde-hf evaluate "
                "... --json FILE` or `Evaluation.save`."
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Evaluation":
        """Reads a file that [`Evaluation.save`] wrote."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"`{path}` cannot be read. {error}") from error

    def save(self, path: str | os.PathLike) -> None:
        """Writes the JSON to a file. An older file is replaced only when the new one is complete."""
        write_text(path, self.to_json())


__all__ = ["Evaluation", "Row", "Scores"]
