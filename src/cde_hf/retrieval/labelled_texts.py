"""Classification and clustering of labelled texts from their vectors, as mteb scores them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, v_measure_score

from .search import check_vectors


Label = str | int


@dataclass(frozen=True)
class DrawScores:
    """
    Scores of several random draws.

    Args:
        scores (`tuple[float, ...]`):
            One score for each draw, between 0 and 1.
    """

    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the draws."""
        return float(np.mean(self.scores))

    @property
    def standard_deviation(self) -> float:
        """Standard deviation over the draws."""
        return float(np.std(self.scores))


def classification_accuracy(
    train_vectors: np.ndarray,
    train_labels: Sequence[Label],
    test_vectors: np.ndarray,
    test_labels: Sequence[Label],
    *,
    samples_per_label: int = 8,
    num_draws: int = 10,
    seed: int = 0,
) -> DrawScores:
    """
    Accuracy of a logistic regression on a few samples of each label.

    Args:
        train_vectors (`np.ndarray` of shape `(num_train_texts, dim)`):
            Vectors to draw the samples from.
        train_labels (`Sequence[Label]`):
            Their labels.
        test_vectors (`np.ndarray` of shape `(num_test_texts, dim)`):
            Vectors to be classified.
        test_labels (`Sequence[Label]`):
            Their labels.
        samples_per_label (`int`, *optional*, defaults to `8`):
            Number of samples of each label; all of them, if a label has fewer.
        num_draws (`int`, *optional*, defaults to `10`):
            Number of draws.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws.

    Returns:
        `DrawScores`: The accuracy on the test texts, one for each draw.
    """
    train_vectors, train_targets = _check_labelled(train_vectors, train_labels, "the training texts")
    test_vectors, test_targets = _check_labelled(test_vectors, test_labels, "the test texts", train_vectors.shape[1])
    generator = np.random.default_rng(seed)
    scores = []
    for _ in range(num_draws):
        order = generator.permutation(len(train_targets))
        rows = np.concatenate(
            [order[train_targets[order] == label][:samples_per_label] for label in np.unique(train_targets)]
        )
        classifier = LogisticRegression(max_iter=100, random_state=seed).fit(train_vectors[rows], train_targets[rows])
        scores.append(float(accuracy_score(test_targets, classifier.predict(test_vectors))))
    return DrawScores(tuple(scores))


def clustering_v_measure(
    vectors: np.ndarray,
    labels: Sequence[Label],
    *,
    num_draws: int = 10,
    draw_size: int = 16_384,
    batch_size: int = 512,
    seed: int = 0,
) -> DrawScores:
    """
    V-measure of mini-batch k-means with as many clusters as there are labels.

    Args:
        vectors (`np.ndarray` of shape `(num_texts, dim)`):
            Vectors of the texts.
        labels (`Sequence[Label]`):
            Their labels.
        num_draws (`int`, *optional*, defaults to `10`):
            Number of draws.
        draw_size (`int`, *optional*, defaults to `16384`):
            Number of texts in a draw, with replacement.
        batch_size (`int`, *optional*, defaults to `512`):
            Mini-batch of k-means.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws and of k-means.

    Returns:
        `DrawScores`: The V-measure, one for each draw.
    """
    vectors, targets = _check_labelled(vectors, labels, "the texts")
    generator = np.random.default_rng(seed)
    num_clusters = len(np.unique(targets))
    scores = []
    for _ in range(num_draws):
        rows = generator.integers(len(targets), size=draw_size)
        clusters = MiniBatchKMeans(num_clusters, batch_size=batch_size, n_init=1, random_state=seed)
        scores.append(float(v_measure_score(targets[rows], clusters.fit_predict(vectors[rows]))))
    return DrawScores(tuple(scores))


def _check_labelled(
    vectors: np.ndarray, labels: Sequence[Label], name: str, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    vectors = check_vectors(vectors, name, num_texts=len(labels), width=width)
    targets = np.asarray(labels)
    if len(np.unique(targets)) < 2:
        raise ValueError(
            f"There must be at least two different labels, but {name} have {len(np.unique(targets))}. Give texts of "
            "all labels."
        )
    return vectors, targets


__all__ = ["DrawScores", "classification_accuracy", "clustering_v_measure"]
