"""
Scores a model trained on docstrings on libraries that it has not seen, and prints a table of NDCG@10.

    python examples/held_out_libraries.py runs/docstrings

The rows of the table:

- BM25
- the encoder that the model was built from, unchanged
- the same encoder contextualized, in another library's context and in the library's own
- the trained model, also contextualized, without a context, in another library's context and in the library's own
"""

import argparse
import random
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

from cde_hf import (
    BM25,
    ContextualModelEmbedder,
    Evaluation,
    RetrievalSet,
    SentenceTransformerEmbedder,
    contextualize,
    docstring_split,
    evaluate,
    model_path,
)
from cde_hf.evaluation import Row


def sample(library: RetrievalSet, num_queries: int, num_documents: int | None) -> RetrievalSet:
    """Samples queries of a library. Keeps their answers, and other documents up to `num_documents`."""
    names = random.Random(0).sample(sorted(library.queries), min(num_queries, len(library.queries)))
    queries, qrels = ({name: part[name] for name in names} for part in (library.queries, library.qrels))
    answers = {name for judgements in qrels.values() for name in judgements}
    kept = sorted(library.corpus, key=lambda name: name not in answers)[:num_documents]
    return RetrievalSet(library.name, {name: library.corpus[name] for name in kept}, queries, qrels)


def describe(evaluation: Evaluation) -> str:
    """Summarises the table."""
    own, foreign, none = (100 * evaluation.mean(Row("ours", context)) for context in ("own", "foreign", "none"))
    plain, pooled = (100 * evaluation.mean(row) for row in (Row("minilm"), Row("minilm contextualized", "own")))
    p_value = evaluation.compare(Row("ours", "foreign"), Row("ours", "own")).p_value
    return (
        f"With the library's own context the model scores {own - foreign:+.1f} points against another library's "
        f"context (p = {p_value:.3f}), {own - none:+.1f} against no context, {own - plain:+.1f} against the encoder "
        f"it was made from, and {own - pooled:+.1f} against that encoder contextualized."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the trained model, where the results are also written")
    parser.add_argument("--queries", type=int, default=500, help="queries of each library (default: 500)")
    parser.add_argument("--documents", type=int, help="documents of each library (default: all)")
    args = parser.parse_args()
    folder = Path(args.model)
    libraries = [sample(library, args.queries, args.documents) for library in docstring_split()[1]]
    biencoder = SentenceTransformer(model_path("minilm"), device="cpu")
    trained = SentenceTransformer(args.model, trust_remote_code=True, device="cpu")
    ours = ContextualModelEmbedder(contextualize(trained, None), "ours")
    biencoder.max_seq_length = ours.model.max_seq_length
    others = [
        BM25(biencoder.tokenizer),
        SentenceTransformerEmbedder(biencoder, "minilm"),
        ContextualModelEmbedder(contextualize(biencoder, None), "minilm contextualized"),
    ]
    evaluation = evaluate(others, libraries, contexts=("foreign", "own"))
    evaluation = evaluation.join(evaluate([ours], libraries, contexts=("none", "foreign", "own")))
    text = f"{evaluation.to_markdown('ndcg@10', baseline=Row('minilm'))}\n{describe(evaluation)}\n"
    (folder / "held_out_libraries.md").write_text(text, encoding="utf-8")
    evaluation.save(folder / "held_out_libraries.json")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
