"""
Searches a LangChain vector store with a checkpoint that has a saved context.

langchain-huggingface needs an older huggingface-hub than this package, so it runs in a separate environment:

    python -m venv langchain && langchain/bin/pip install langchain-huggingface sentence-transformers
    cde-hf contextualize minilm corpus.txt minilm-corpus
    langchain/bin/python examples/langchain_retriever.py minilm-corpus corpus.txt "Who makes noise?"

The checkpoint contains its own code, so the environment does not need `cde_hf`.
"""

import argparse
import sys
from pathlib import Path

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a checkpoint with a saved context")
    parser.add_argument("corpus", type=Path, help="text file with one document per line")
    parser.add_argument("question", help="query to search for")
    parser.add_argument("--depth", type=int, default=3, help="documents to show (default: 3)")
    args = parser.parse_args()

    embeddings = HuggingFaceEmbeddings(
        model_name=args.model,
        model_kwargs={"trust_remote_code": True, "device": "cpu"},
        encode_kwargs={"normalize_embeddings": True},
    )
    store = InMemoryVectorStore(embeddings)
    store.add_texts([line.strip() for line in args.corpus.read_text(encoding="utf-8").splitlines() if line.strip()])
    for document, score in store.similarity_search_with_score(args.question, k=args.depth):
        sys.stdout.write(f"{score:.4f}  {document.page_content}\n")


if __name__ == "__main__":
    main()
