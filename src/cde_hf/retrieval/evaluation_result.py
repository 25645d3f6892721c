"""The result of an evaluation: every score, tables of means, and comparisons."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from .metrics import METRICS
from .significance import Comparison, compare_scores


_SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Evaluation:
    """
    Scores of systems on retrieval sets, made by [`evaluate`].

    Args:
        scores (`dict[str, dict[str, dict[str, dict[str, float]]]]`):
            Score between 0 and 1, by set, system, metric and query.
        foreign_sets (`dict[str, str]`):
            The set that each set took its foreign context from.
        context_size (`int`):
            Number of context documents.
        seed (`int`):
            Seed with which they were sampled.
    """

    scores: dict[str, dict[str, dict[str, dict[str, float]]]]
    foreign_sets: dict[str, str]
    context_size: int
    seed: int

    @property
    def sets(self) -> list[str]:
        """Names of the sets."""
        return list(self.scores)

    @property
    def systems(self) -> list[str]:
        """Names of the systems. A contextual system has one name for each context."""
        return list(next(iter(self.scores.values())))

    def mean(self, system: str, *, retrieval_set: str | None = None, metric: str = "ndcg@10") -> float:
        """Mean score of a system on a set, or the average of these means over all sets."""
        names = self.sets if retrieval_set is None else [retrieval_set]
        return float(np.mean([np.mean(list(self.scores[name][system][metric].values())) for name in names]))

    def compare(
        self, first: str, second: str, *, retrieval_set: str | None = None, metric: str = "ndcg@10"
    ) -> Comparison:
        """Paired randomisation test between two systems, on one set or on all sets."""
        names = self.sets if retrieval_set is None else [retrieval_set]
        return compare_scores(
            [self.scores[name][first][metric] for name in names], [self.scores[name][second][metric] for name in names]
        )

    def join(self, other: "Evaluation") -> "Evaluation":
        """
        Joins the rows of two evaluations, for systems that were evaluated separately with different contexts.

        Args:
            other (`Evaluation`):
                An evaluation of other systems on the same queries, with the same context documents.
        """
        settings = [(part.sets, part.context_size, part.seed) for part in (self, other)]
        if settings[0] != settings[1] or set(self.systems) & set(other.systems):
            raise ValueError(
                "Only evaluations of different systems on the same sets in contexts of the same size and seed can be "
                f"joined, got {settings[0]} with {self.systems} and {settings[1]} with {other.systems}."
            )
        scores = {name: {**self.scores[name], **other.scores[name]} for name in self.sets}
        return replace(self, scores=scores, foreign_sets={**self.foreign_sets, **other.foreign_sets})

    def to_markdown(self, metric: str = "ndcg@10", *, baseline: str | None = None) -> str:
        """
        Returns a table with a row for each system and a column for each set, in percent.

        Args:
            metric (`str`, *optional*, defaults to `"ndcg@10"`):
                One of `"ndcg@10"`, `"mrr@10"` and `"recall@100"`.
            baseline (`str`, *optional*):
                Name of a system. Scores that differ significantly from its score (p < 0.05) get a star.
        """
        if metric not in METRICS:
            raise ValueError(f"There is no metric `{metric}`. Use one of {', '.join(METRICS)}.")
        if baseline is not None and baseline not in self.systems:
            raise ValueError(f"There is no system `{baseline}`. Use one of {', '.join(self.systems)}.")
        columns = [*self.sets, None]
        lines = [f"| {metric} | {' | '.join(self.sets)} | mean |", "|---" * (len(columns) + 1) + "|"]
        for system in self.systems:
            cells = [self._cell(system, name, metric, baseline) for name in columns]
            lines.append(f"| {system} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def _cell(self, system: str, retrieval_set: str | None, metric: str, baseline: str | None) -> str:
        score = f"{100 * self.mean(system, retrieval_set=retrieval_set, metric=metric):.1f}"
        if baseline is None or system == baseline:
            return score
        comparison = self.compare(baseline, system, retrieval_set=retrieval_set, metric=metric)
        return f"{score}*" if comparison.p_value < _SIGNIFICANCE_LEVEL else score

    def to_json(self) -> str:
        """Returns all scores and settings, for [`Evaluation.from_json`]."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Reads the output of [`Evaluation.to_json`]."""
        return cls(**json.loads(text))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the JSON to a file. An older file is replaced only when the new one is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            (Path(folder) / path.name).write_text(self.to_json(), encoding="utf-8")
            os.replace(Path(folder) / path.name, path)


__all__ = ["Evaluation"]
