"""Scores of a ranking by trec_eval: NDCG@10, MRR@10 and recall@100 of every query."""

from importlib.util import find_spec

import numpy as np

from ..data.retrieval_sets import RetrievalSet
from .exact_search import Ranking


METRICS = ("ndcg@10", "mrr@10", "recall@100")

# Number of documents per query that the metrics need.
RANKING_DEPTH = 100


def check_scorer() -> None:
    """Raises an error if trec_eval is missing, so that nobody encodes a corpus first."""
    if find_spec("pytrec_eval") is None:
        raise ImportError("Scores need the package `pytrec_eval`: `pip install 'cde-hf[eval]'`.")


def score_ranking(ranking: Ranking, retrieval_set: RetrievalSet) -> dict[str, dict[str, float]]:
    """
    Scores a ranking against the judgements of a retrieval set. A query that found nothing scores 0.

    Args:
        ranking (`Ranking`):
            One row for each query of the set, in the set's order.
        retrieval_set (`RetrievalSet`):
            The set.

    Returns:
        `dict[str, dict[str, float]]`: The score of each query between 0 and 1, for each of the `METRICS`.
    """
    check_scorer()
    import pytrec_eval

    document_ids = list(retrieval_set.corpus)
    runs: dict[str, dict[str, float]] = {}
    short_runs: dict[str, dict[str, float]] = {}
    for query_id, indices, scores in zip(
        retrieval_set.queries, ranking.document_indices.tolist(), ranking.scores.tolist(), strict=True
    ):
        found = [(document_ids[index], score) for index, score in zip(indices, scores, strict=True) if index >= 0]
        # As trec_eval breaks ties: by 32-bit score, then by id, both descending.
        first = sorted(found, key=lambda pair: (np.float32(pair[1]), pair[0].encode()), reverse=True)[:10]
        runs[query_id], short_runs[query_id] = dict(found), dict(first)
    results = pytrec_eval.RelevanceEvaluator(retrieval_set.qrels, {"ndcg_cut.10", "recall.100"}).evaluate(runs)
    # trec_eval has no cutoff for the reciprocal rank, so the run itself is cut off.
    short_results = pytrec_eval.RelevanceEvaluator(retrieval_set.qrels, {"recip_rank"}).evaluate(short_runs)
    return {
        "ndcg@10": _scores_of(results, "ndcg_cut_10", retrieval_set),
        "mrr@10": _scores_of(short_results, "recip_rank", retrieval_set),
        "recall@100": _scores_of(results, "recall_100", retrieval_set),
    }


def _scores_of(results: dict[str, dict[str, float]], measure: str, retrieval_set: RetrievalSet) -> dict[str, float]:
    # trec_eval skips queries that found nothing.
    return {query_id: results.get(query_id, {}).get(measure, 0.0) for query_id in retrieval_set.queries}


__all__ = ["METRICS", "RANKING_DEPTH", "check_scorer", "score_ranking"]
