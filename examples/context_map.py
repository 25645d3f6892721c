"""
Plots what a context does: the embeddings of one document in contexts sampled from several libraries, in 2D.

    python examples/context_map.py runs/docstrings

The paper has the same plot for its model. Points of one colour are samples of one library. The further apart the
colours are, the more the corpus changes the embedding.
"""

import argparse
import sys

import matplotlib
import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA
from tqdm.auto import tqdm

from cde_hf import ContextualModelEmbedder, RetrievalSet, docstring_split, sample_documents


matplotlib.use("Agg")
from matplotlib import pyplot as plt


def embed_in_contexts(
    embedder: ContextualModelEmbedder, document: str, library: RetrievalSet, *, num_contexts: int, size: int
) -> np.ndarray:
    """Embeds one document in several contexts of a library. Returns an array of shape `(num_contexts, dim)`."""
    vectors = []
    for seed in range(num_contexts):
        embedder.set_context(sample_documents(list(library.corpus.values()), size, seed=seed))
        vectors.append(embedder.embed_documents([document])[0])
    return np.stack(vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("--output", help="image to write (default: contexts.png in the model's folder)")
    parser.add_argument("--contexts", type=int, default=8, help="contexts of each library (default: 8)")
    parser.add_argument("--context-size", type=int, default=64, help="context documents (default: 64)")
    args = parser.parse_args()
    libraries = docstring_split()[1]
    document = next(iter(libraries[0].corpus.values()))
    embedder = ContextualModelEmbedder(SentenceTransformer(args.model, trust_remote_code=True, device="cpu"), "model")
    vectors = [
        embed_in_contexts(embedder, document, library, num_contexts=args.contexts, size=args.context_size)
        for library in tqdm(libraries, desc="Contexts", unit=" libraries", leave=False)
    ]
    points = PCA(n_components=2).fit_transform(np.concatenate(vectors)).reshape(len(libraries), args.contexts, 2)
    figure, axes = plt.subplots(figsize=(6, 4.5))
    for library, chosen in zip(libraries, points, strict=True):
        axes.scatter(chosen[:, 0], chosen[:, 1], label=library.name)
    axes.legend(title="context from")
    axes.set_title(f"One document in the contexts of {len(libraries)} libraries (PCA)")
    output = args.output or f"{args.model}/contexts.png"
    figure.savefig(output, dpi=120, bbox_inches="tight")
    sys.stdout.write(f"Wrote {output}.\n")


if __name__ == "__main__":
    main()
