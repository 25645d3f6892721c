"""
Speed and quality of a contextual model that fastembed serves, against the plain model and against PyTorch.

The same texts are encoded by all of them on one thread, in batches of 32, sorted by length. Times are processor times
with tokenization. The graphs take turns, and the best round counts. Compare the ratios. NDCG@10 comes from exact
search on a retrieval set, with its own documents as context.

`make test-integrations` makes the environment of fastembed:

    .venv/bin/python benchmarks/onnx_speed.py --data cranfield
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cde_hf import Context, RetrievalSet, contextualize, export_onnx, load_retrieval_set, model_path, sample_documents
from cde_hf.evaluation.exact_search import search_vectors
from cde_hf.evaluation.metrics import RANKING_DEPTH, score_ranking


FASTEMBED = Path(__file__).parents[1] / ".venv-integrations" / "fastembed" / "bin" / "python"
WORKER = """
import json, sys, time
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

work, models = json.load(sys.stdin), {}
for folder, dimension in work["folders"].items():
    TextEmbedding.add_custom_model(
        folder, pooling=PoolingType.DISABLED, normalization=True, sources=ModelSource(hf=folder), dim=dimension,
        model_file="model.onnx",
    )
    models[folder] = TextEmbedding(folder, specific_model_path=folder, threads=1)
seconds = {folder: {} for folder in models}
for name, texts in work["timed"].items():
    for _ in range(work["rounds"] * (20 if len(texts) == 1 else 1)):
        for folder, model in models.items():
            start = time.process_time()
            list(model.embed(texts, batch_size=32))
            seconds[folder][name] = min(seconds[folder].get(name, 1e9), time.process_time() - start)
vectors = {folder: {} for folder in models}
for folder, model in models.items():
    for name, texts in work["encoded"].items():
        vectors[folder][name] = [vector.tolist() for vector in model.embed(texts, batch_size=32)]
json.dump({"seconds": seconds, "vectors": vectors}, sys.stdout)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="a plain model (default: minilm)")
    parser.add_argument("--data", nargs="+", required=True, help="folders of retrieval sets of 300 documents and more")
    parser.add_argument("--rounds", type=int, default=3, help="rounds for 300 documents; 20 times as many for a query")
    args = parser.parse_args()

    torch.set_num_threads(1)
    for folder in args.data:
        for line in compare(args.model, load_retrieval_set(folder), args.rounds):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()


def compare(name: str, retrieval_set: RetrievalSet, num_rounds: int) -> list[str]:
    """The table of a retrieval set."""
    documents = dict(sorted(retrieval_set.corpus.items(), key=lambda item: len(item[1])))
    retrieval_set, queries = replace(retrieval_set, corpus=documents), retrieval_set.queries
    timed = {"query": list(queries.values())[:1], "documents": sample_documents(list(documents.values()), 300)}
    timed["documents"].sort(key=len)
    contextual = contextualize(model_path(name), documents)
    plain = contextualize(model_path(name), Context(), corpus_dim=0)  # an empty context
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(plain, f"{folder}/plain")
        export_onnx(contextual, f"{folder}/contextual")
        export_onnx(contextual, f"{folder}/contextual int8", quantize=True)
        sizes = {"plain": plain, "contextual": contextual, "contextual int8": contextual}
        work = {
            "folders": {f"{folder}/{kind}": model.get_embedding_dimension() for kind, model in sizes.items()},
            "timed": timed,
            "encoded": {"queries": list(queries.values()), "documents": list(documents.values())},
            "rounds": num_rounds,
        }
        result = subprocess.run([FASTEMBED, "-c", WORKER], input=json.dumps(work), capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(result.stderr)
    served = json.loads(result.stdout)
    rows = {f"{Path(path).name}, fastembed": (seconds, path) for path, seconds in served["seconds"].items()}
    rows["plain, PyTorch"] = time_in_pytorch(plain, timed, num_rounds), f"{folder}/plain"
    rows["contextual, PyTorch"] = time_in_pytorch(contextual, timed, num_rounds), f"{folder}/contextual"
    base = rows["plain, fastembed"][0]
    lines = [
        f"{retrieval_set.name}, {len(documents):,} documents\n",
        "| | one query ms | 300 documents s | of plain fastembed | ndcg@10 |",
        "|---|---|---|---|---|",
    ]
    for row, (seconds, path) in rows.items():
        ratios = f"{seconds['query'] / base['query']:.2f}x, {seconds['documents'] / base['documents']:.2f}x"
        score = f"{ndcg(served['vectors'][path], retrieval_set):.1f}" if "fastembed" in row else ""
        lines.append(f"| {row} | {1000 * seconds['query']:.1f} | {seconds['documents']:.2f} | {ratios} | {score} |")
    return [*lines, ""]


def time_in_pytorch(model: Any, timed: dict[str, list[str]], num_rounds: int) -> dict[str, float]:
    """Best time of each list of texts, in seconds."""
    best = dict.fromkeys(timed, float("inf"))
    for name, texts in timed.items():
        for _ in range(num_rounds * (20 if len(texts) == 1 else 1)):
            start = time.process_time()
            model.encode(texts, batch_size=32, normalize_embeddings=True)
            best[name] = min(best[name], time.process_time() - start)
    return best


def ndcg(vectors: dict[str, list[list[float]]], retrieval_set: RetrievalSet) -> float:
    """NDCG@10 of exact search, in percent."""
    queries, documents = (np.array(vectors[name], np.float32) for name in ("queries", "documents"))
    ranking = search_vectors(queries, [documents], depth=RANKING_DEPTH)
    return 100 * float(np.mean(list(score_ranking(ranking, retrieval_set)["ndcg@10"].values())))


if __name__ == "__main__":
    main()
