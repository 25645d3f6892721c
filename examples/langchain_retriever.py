"""
Searches a LangChain vector store with a model that knows the corpus.

    pip install langchain-core
    python examples/langchain_retriever.py minilm corpus.txt "Who makes noise?"
"""

import argparse
import sys

from langchain_core.vectorstores import InMemoryVectorStore

from cde_hf import CorpusEmbeddings, contextualize, load_corpus, model_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a sentence-transformers model by folder or Hub name, or minilm")
    parser.add_argument("corpus", help="any corpus, such as a text file with one document per line")
    parser.add_argument("question", help="query to search for")
    parser.add_argument("--depth", type=int, default=3, help="documents to show (default: 3)")
    args = parser.parse_args()

    corpus = load_corpus(args.corpus)
    embeddings = CorpusEmbeddings(contextualize(model_path(args.model), corpus))
    store = InMemoryVectorStore(embeddings)
    store.add_texts(list(corpus.values()), ids=list(corpus))
    for document, score in store.similarity_search_with_score(args.question, k=args.depth):
        sys.stdout.write(f"{score:.4f}  {document.page_content}\n")


if __name__ == "__main__":
    main()
