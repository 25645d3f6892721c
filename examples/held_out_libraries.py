"""
What a model trained on docstrings is worth on libraries that it has not seen: a table, a figure and a card.

    python examples/held_out_libraries.py runs/docstrings

NDCG@10 of BM25, of the biencoder that the model was made from, as it is, whitened and with context-frequency pooling,
and of the model with the library's own context, with another's and with none; and the time of a query.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA

from cde_hf import (
    BM25,
    CardFacts,
    CDEEmbedder,
    FrequencyPoolingEmbedder,
    RetrievalSet,
    SentenceTransformerEmbedder,
    WhitenedEmbedder,
    docstring_split,
    evaluate,
    make_model_card,
    model_path,
)


matplotlib.use("Agg")
from matplotlib import pyplot as plt


def sample_queries(retrieval_set: RetrievalSet, num_queries: int) -> RetrievalSet:
    """A library with all of its documents and some of its queries."""
    names = random.Random(0).sample(sorted(retrieval_set.queries), min(num_queries, len(retrieval_set.queries)))
    queries, qrels = ({name: part[name] for name in names} for part in (retrieval_set.queries, retrieval_set.qrels))
    return RetrievalSet(retrieval_set.name, retrieval_set.corpus, queries, qrels)


def milliseconds_per_query(system, queries: list[str], documents: list[str]) -> float:
    """Best time of a query that comes alone."""
    times = []
    for query in queries:
        start = time.perf_counter()
        if hasattr(system, "embed_queries"):
            system.embed_queries([query])
        else:
            system.rank([query], documents, depth=10)  # which builds its index anew
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def draw_contexts(embedder: CDEEmbedder, retrieval_sets: list[RetrievalSet], path: Path, context_size: int) -> None:
    """Saves a picture of one document's vectors in several contexts of each library."""
    document = next(iter(retrieval_sets[0].corpus.values()))
    vectors, labels = [], []
    for retrieval_set in retrieval_sets:
        documents = sorted(retrieval_set.corpus.values())
        for seed in range(8):
            embedder.set_context(random.Random(seed).sample(documents, min(context_size, len(documents))))
            vectors.append(embedder.embed_documents([document])[0])
            labels.append(retrieval_set.name)
    points = PCA(n_components=2).fit_transform(np.stack(vectors))
    figure, axes = plt.subplots(figsize=(6, 4.5))
    for name in dict.fromkeys(labels):
        chosen = points[np.array(labels) == name]
        axes.scatter(chosen[:, 0], chosen[:, 1], label=name)
    axes.legend(title="context from")
    axes.set_title("One document in the contexts of four libraries (PCA)")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the trained model; the results go there too")
    parser.add_argument("--queries", type=int, default=200, help="queries of each library (default: 200)")
    parser.add_argument("--context-size", type=int, default=64, help="context documents (default: 64)")
    args = parser.parse_args()
    folder = Path(args.model)
    retrieval_sets = [sample_queries(library, args.queries) for library in docstring_split()[1]]
    biencoder = SentenceTransformer(model_path("minilm"), device="cpu")
    ours = CDEEmbedder(SentenceTransformer(args.model, trust_remote_code=True, device="cpu"), "ours")
    biencoder.max_seq_length = ours.model.max_seq_length
    plain = SentenceTransformerEmbedder(biencoder, "minilm")
    pooled = FrequencyPoolingEmbedder(biencoder, "minilm, frequency-pooled")
    systems = [BM25(), plain, WhitenedEmbedder(plain, "minilm, whitened"), pooled, ours]
    evaluation = evaluate(systems, retrieval_sets, contexts=("own", "foreign", "none"), context_size=args.context_size)
    lines = [evaluation.to_markdown("ndcg@10", baseline="minilm"), "", "| system | ms for a query |", "|---|---|"]
    queries, documents = (list(part.values()) for part in (retrieval_sets[0].queries, retrieval_sets[0].corpus))
    for system in systems:
        if hasattr(system, "set_context"):
            system.set_context(documents[: args.context_size])
        lines.append(f"| {system.name} | {milliseconds_per_query(system, queries[:20], documents):.1f} |")
    (folder / "held_out_libraries.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    evaluation.save(folder / "held_out_libraries.json")
    draw_contexts(ours, retrieval_sets, folder / "contexts.png", args.context_size)
    facts = CardFacts("sentence-transformers/all-MiniLM-L6-v2", evaluation=evaluation, system="ours, own context")
    (folder / "README.md").write_text(make_model_card(folder, f"cde-hf/{folder.name}", facts), encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
