"""
drift: how far an index drifts when its corpus grows or changes, and what rebuilding its context improves.

For each set, an index is built from one half of its documents, with all-MiniLM-L6-v2, context-frequency pooling and 64
context documents. Then:

1. The other half is added: the corpus only grows.
2. Documents of the next set are added until they are 10%, 30% and 50% of the corpus: the corpus changes.
3. With as many documents of both sets, the queries of the new set are searched with the old context and with a context
   of the mixed corpus: the difference is what a rebuild improves.
"""

from statistics import fmean

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from cde_hf import ContextualIndex, RetrievalSet, contextualize, load_retrieval_set, model_path
from cde_hf.evaluation import Ranking
from cde_hf.evaluation.metrics import score_ranking

from .runner.experiment import Experiment, Page, Setting
from .runner.table import Row, markdown_table


SETS = (
    "cranfield",
    "redditforum-legaladvice",
    "se-ai",
    "redditforum-matlab",
    "med",
    "redditforum-askphilosophy",
    "nq-utd",
)
SHARES = (0.1, 0.3, 0.5)
CONTEXT_SIZE = 64
MAX_DOCUMENTS = 400  # of a set
MAX_LENGTH = 128


def run(setting: Setting) -> list[Row]:
    """Drift and scores of each set that is followed by the next one."""
    folder = setting.workspace.data_folder / "eval"
    names, context_size = (SETS[:2], 4) if setting.is_quick else (SETS, CONTEXT_SIZE)
    sets = [load_retrieval_set(folder / name) for name in names]
    encoder = SentenceTransformer(model_path("minilm"), device="cpu")
    encoder.max_seq_length = MAX_LENGTH
    pairs = zip(sets, [*sets[1:], sets[0]], strict=True)
    return [measure(encoder, *pair, context_size) for pair in tqdm(pairs, total=len(sets), desc="Sets", unit="set")]


def measure(encoder: SentenceTransformer, retrieval_set: RetrievalSet, other: RetrievalSet, context_size: int) -> Row:
    """Drift of an index of one set as documents are added, and NDCG@10 on the other set before and after a rebuild."""
    generator = np.random.default_rng(0)
    names, other_names = (
        [str(name) for name in generator.permutation(list(each.corpus))[:MAX_DOCUMENTS]]
        for each in (retrieval_set, other)
    )
    half = len(names) // 2
    old = {f"old {name}": retrieval_set.corpus[name] for name in names[:half]}
    index = ContextualIndex.build(contextualize(encoder, list(old.values()), size=context_size), old)
    row: Row = {"set": retrieval_set.name, "other": other.name}
    row["grown"] = index.drift([retrieval_set.corpus[name] for name in names[half : 2 * half]]).value
    for share in SHARES:
        num_new = min(round(half * share / (1 - share)), len(other_names))
        row[f"changed {share:.0%}"] = index.drift([other.corpus[name] for name in other_names[:num_new]] or None).value
    new = {f"new {name}": other.corpus[name] for name in other_names[:half]}
    index.add(new)
    rebuilt = contextualize(encoder, [*old.values(), *new.values()], size=context_size)
    row["old context"] = ndcg(index, other, "new ")
    row["new context"] = ndcg(ContextualIndex.build(rebuilt, {**old, **new}), other, "new ")
    return row


def ndcg(index: ContextualIndex, retrieval_set: RetrievalSet, mark: str) -> float:
    """NDCG@10, in percent, of the queries that have an answer in the index, whose ids begin with a mark."""
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
    return 100 * fmean(score_ranking(ranking, part)["ndcg@10"].values())


def report(rows: list[Row]) -> Page:
    """A line for each set."""
    drifts = ["grown", *(f"changed {share:.0%}" for share in SHARES)]
    lines = [
        [
            f"{row['set']}, {row['other']}",
            *(f"{row[name]:.2f}" for name in drifts),
            *(f"{row[name]:.1f}" for name in ("old context", "new context")),
        ]
        for row in rows
    ]
    gains = [row["new context"] - row["old context"] for row in rows]
    finding = (
        f"Drift is at most {max(row['grown'] for row in rows):.2f} when a corpus doubles and at least "
        f"{min(row[drifts[-1]] for row in rows):.2f} when half of it is new. A rebuild then improves NDCG@10 by "
        f"{fmean(gains):.1f} on average, on {sum(gain > 0 for gain in gains)} of {len(rows)} sets."
    )
    text = f"""## Setting

all-MiniLM-L6-v2 with context-frequency pooling and {CONTEXT_SIZE} context documents, texts of {MAX_LENGTH} tokens, at
most {MAX_DOCUMENTS} documents of each set. The index holds half of a set. *grown*: drift when the other half is added.
*changed*: drift when documents of the next set are added until they are this share of the corpus. The last two columns
are NDCG@10 of the next set's queries at one half, with the old context and with a context of the mixed corpus.

{markdown_table(["set, then", *drifts, "old context", "new context"], lines)}"""
    return Page(finding, text)


EXPERIMENT = Experiment(
    name="drift",
    title="Drift of an index",
    claim="Drift tells a corpus that changes from a corpus that only grows.",
    minutes=10,
    run=run,
    report=report,
)
