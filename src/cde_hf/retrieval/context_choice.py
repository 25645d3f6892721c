"""Which documents of a corpus to show to a model: any at random, or some that are spread over it."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import pairwise_distances_argmin
from sklearn.preprocessing import normalize

from ..modeling import sample_documents


_MAX_SPREAD_DOCUMENTS = 20_000
_DIM = 64


def choose_documents(
    documents: Sequence[str], size: int, *, method: Literal["random", "spread"] = "random", seed: int = 0
) -> list[str]:
    """
    Chooses context documents from a corpus.

    Args:
        documents (`Sequence[str]`):
            The corpus. A column of a `datasets.Dataset` is read only where documents are drawn.
        size (`int`):
            Number of documents to choose; all of them, if there are no more.
        method (`str`, *optional*, defaults to `"random"`):
            `"random"` draws them without replacement. `"spread"` clusters the corpus, or 20,000 documents of it, by
            TF-IDF vectors into `size` clusters and takes the document in the middle of each: rare topics are seen as
            well.
        seed (`int`, *optional*, defaults to `0`):
            Seed of all draws.

    Returns:
        `list[str]`: The documents, each at most once.
    """
    if size < 1:
        raise ValueError(f"`size` must be at least 1, got {size}. For no context use `CorpusContext.null()`.")
    if method == "random" or len(documents) <= size:
        return sample_documents(documents, size, seed=seed)
    if method != "spread":
        raise ValueError(f"`method` must be `random` or `spread`, got `{method}`.")
    candidates = sample_documents(documents, max(_MAX_SPREAD_DOCUMENTS, size), seed=seed)
    vectors = _cheap_vectors(candidates, seed)
    kmeans = MiniBatchKMeans(size, random_state=seed, n_init=3, batch_size=max(1024, 4 * size)).fit(vectors)
    middle = pairwise_distances_argmin(kmeans.cluster_centers_, vectors)
    chosen = list(dict.fromkeys(middle.tolist()))  # two centres may share their nearest document
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(candidates)), chosen))
    return [candidates[index] for index in [*chosen, *rest[: size - len(chosen)]]]


def _cheap_vectors(documents: list[str], seed: int) -> np.ndarray:
    weights = TfidfVectorizer(sublinear_tf=True, max_features=20_000, dtype=np.float32).fit_transform(documents)
    dim = min(_DIM, weights.shape[1] - 1)
    if dim < 2:
        return weights.toarray()
    return normalize(TruncatedSVD(dim, random_state=seed).fit_transform(weights))


__all__ = ["choose_documents"]
