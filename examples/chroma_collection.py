"""
Keeps a corpus in a Chroma collection, which refuses the embeddings of another model or context.

    pip install chromadb
    chroma run --path chroma
    python examples/chroma_collection.py minilm corpus.txt "Who makes noise?"
"""

import argparse
import sys

import chromadb

from cde_hf import CorpusEmbeddings, contextualize, load_corpus, model_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a sentence-transformers model by folder or Hub name, or minilm")
    parser.add_argument("corpus", help="any corpus, such as a text file with one document per line")
    parser.add_argument("question", help="query to search for")
    parser.add_argument("--collection", default="corpus", help="name of the collection (default: corpus)")
    parser.add_argument("--port", type=int, default=8000, help="port of the server (default: 8000)")
    args = parser.parse_args()

    corpus = load_corpus(args.corpus)
    embeddings = CorpusEmbeddings(contextualize(model_path(args.model), corpus))
    client = chromadb.HttpClient("localhost", args.port)
    collection = client.get_or_create_collection(args.collection, embedding_function=embeddings)
    collection.upsert(ids=list(corpus), documents=list(corpus.values()))
    found = collection.query(query_texts=[args.question], n_results=3)
    for distance, text in zip(found["distances"][0], found["documents"][0], strict=True):
        sys.stdout.write(f"{1 - distance:.4f}  {text}\n")


if __name__ == "__main__":
    main()
