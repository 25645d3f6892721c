"""
What a model trained on docstrings is worth on libraries that it has not seen: a table and a card.

    python examples/held_out_libraries.py runs/docstrings

NDCG@10 of BM25, of the biencoder that the model was made from, as it is, whitened and with context-frequency pooling,
and of the model with the library's own context, with another's and with none; and the time of a query.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from sentence_transformers import SentenceTransformer

from cde_hf import (
    BM25,
    CardFacts,
    CDEEmbedder,
    Evaluation,
    FrequencyPoolingEmbedder,
    RetrievalSet,
    SentenceTransformerEmbedder,
    docstring_split,
    evaluate,
    make_model_card,
    model_path,
)
from cde_hf.retrieval import RememberingEmbedder, WhitenedEmbedder


def sample(library: RetrievalSet, num_queries: int, num_documents: int | None) -> RetrievalSet:
    """Some queries of a library with their answers, and other documents up to a number."""
    names = random.Random(0).sample(sorted(library.queries), min(num_queries, len(library.queries)))
    queries, qrels = ({name: part[name] for name in names} for part in (library.queries, library.qrels))
    answers = {name for judgements in qrels.values() for name in judgements}
    kept = sorted(library.corpus, key=lambda name: name not in answers)[:num_documents]
    return RetrievalSet(library.name, {name: library.corpus[name] for name in kept}, queries, qrels)


def time_query(system, queries: list[str], documents: list[str], context_size: int) -> float:
    """Milliseconds of a query that comes alone, the best of several; of BM25, of one query more."""
    if hasattr(system, "set_context"):
        system.set_context(documents[:context_size])
    if isinstance(system, BM25):  # which builds its index anew each time
        few, many = (
            elapsed(lambda part=part: system.rank(part, documents, depth=10)) for part in (queries[:1], queries)
        )
        return 1000 * max(0.0, many - few) / (len(queries) - 1)
    return 1000 * min(elapsed(lambda query=query: system.embed_queries([query])) for query in queries)


def elapsed(function) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def describe(evaluation: Evaluation) -> str:
    """What the table says."""
    own, foreign, none = (100 * evaluation.mean(f"ours, {name} context") for name in ("own", "foreign", "no"))
    names = ("minilm", "minilm, whitened, own context", "minilm, frequency-pooled, own context")
    plain, whitened, pooled = (100 * evaluation.mean(name) for name in names)
    p_value = evaluation.compare("ours, foreign context", "ours, own context").p_value
    return (
        f"With the library's own context the model is {own - foreign:+.1f} points against another library's context "
        f"(p = {p_value:.3f}) and {own - none:+.1f} against none; {own - plain:+.1f} against the biencoder it was "
        f"made from, {own - whitened:+.1f} and {own - pooled:+.1f} against that one whitened and frequency-pooled."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the trained model; the results go there too")
    parser.add_argument("--queries", type=int, default=500, help="queries of each library (default: 500)")
    parser.add_argument("--documents", type=int, help="documents of each library (default: all)")
    parser.add_argument("--context-size", type=int, default=64, help="context documents (default: 64)")
    args = parser.parse_args()
    folder = Path(args.model)
    libraries = [sample(library, args.queries, args.documents) for library in docstring_split()[1]]
    biencoder = SentenceTransformer(model_path("minilm"), device="cpu")
    ours = CDEEmbedder(SentenceTransformer(args.model, trust_remote_code=True, device="cpu"), "ours")
    biencoder.max_seq_length = ours.model.max_seq_length
    plain = SentenceTransformerEmbedder(biencoder, "minilm")
    kept = RememberingEmbedder(plain)
    pooled = FrequencyPoolingEmbedder(biencoder, "minilm, frequency-pooled")
    others = [BM25(), kept, WhitenedEmbedder(kept, "minilm, whitened"), pooled]
    evaluation = evaluate(others, libraries, context_size=args.context_size)
    contexts = ("none", "foreign", "own")
    evaluation = evaluation.join(evaluate([ours], libraries, contexts=contexts, context_size=args.context_size))
    lines = [evaluation.to_markdown("ndcg@10", baseline="minilm"), "| system | ms for a query |", "|---|---|"]
    queries, documents = list(libraries[0].queries.values())[:20], list(libraries[0].corpus.values())
    for system in (BM25(), plain, WhitenedEmbedder(plain, "minilm, whitened"), pooled, ours):
        lines.append(f"| {system.name} | {time_query(system, queries, documents, args.context_size):.1f} |")
    lines += ["", describe(evaluation)]
    (folder / "held_out_libraries.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    evaluation.save(folder / "held_out_libraries.json")
    facts = CardFacts("sentence-transformers/all-MiniLM-L6-v2", evaluation=evaluation, system="ours, own context")
    (folder / "README.md").write_text(make_model_card(folder, f"cde-hf/{folder.name}", facts), encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
