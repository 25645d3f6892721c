"""F13: how far a document's vector moves when the context changes, compared with its distance from other documents."""

import random
from itertools import product

import numpy as np
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from tqdm.auto import tqdm

from . import main_table
from .runner.experiment import Experiment, Page, Setting
from .runner.scoring import load_system
from .runner.sets import load_sets
from .runner.sweep import quick_evaluation, quick_run
from .runner.table import Row, markdown_table, select
from .runner.training import train_run


NUM_DOCUMENTS = 100
NUM_DRAWS = 6
POOLINGS = {"mean": "contextual", "frequency-pooled": "contextual, frequency-pooled"}


def run(setting: Setting) -> list[Row]:
    """Vectors of documents of the first set in contexts of all sets, by T1's model in prefix attention."""
    config = main_table.base_run(architecture="prefix")
    evaluation = main_table.EVALUATION
    if setting.is_quick:
        config, evaluation = quick_run(config), quick_evaluation(evaluation)
    folder = train_run(setting.workspace, config)
    sets = load_sets(setting.workspace, evaluation)
    documents = list(sets[0].corpus.values())[:NUM_DOCUMENTS]
    rows = []
    for pooling, kind in POOLINGS.items():
        embedder = load_system(folder, kind, evaluation.max_length)
        vectors, names = [], []
        for retrieval_set in tqdm(sets, desc=f"Contexts, {pooling}"):
            texts = sorted(retrieval_set.corpus.values())
            for draw in range(NUM_DRAWS):
                embedder.set_context(random.Random(draw).sample(texts, min(evaluation.context_size, len(texts))))
                vectors.append(embedder.embed_documents(documents))
                names.append(retrieval_set.name)
        rows += [{"pooling": pooling, **row} for row in measure(np.stack(vectors), names)]
    return rows


def measure(vectors: np.ndarray, names: list[str]) -> list[Row]:
    """
    A row for each context: where the first document lies, how near documents are to themselves and to others, and how
    much of their way from the first context is the same for all of them.

    Args:
        vectors (`np.ndarray` of shape `(num_contexts, num_documents, dim)`):
            Vectors of length 1.
        names (`list[str]`):
            The set of each context.
    """
    points = PCA(n_components=2).fit_transform(vectors[:, 0])
    home = vectors[0]  # the first context of the documents' own set
    rows = []
    for number, name in enumerate(names):
        scores = home @ vectors[number].T
        others = np.where(np.eye(len(scores), dtype=bool), -np.inf, scores).max(axis=1)
        ways = vectors[number] - home
        length = float((ways**2).sum(axis=1).mean())
        rows.append(
            {
                "context": name,
                "draw": number % NUM_DRAWS,
                "x": float(points[number, 0]),
                "y": float(points[number, 1]),
                "to_itself": float(scores.diagonal().mean()),
                "to_nearest_other": float(others.mean()),
                "nearest_is_itself": float((scores.diagonal() > others).mean()),
                "common_share": float((ways.mean(axis=0) ** 2).sum()) / length if length > 0 else 0.0,
            }
        )
    return rows


def report(rows: list[Row]) -> Page:
    """Similarities, the common part of the movement, and the picture."""
    figure = Figure(figsize=(6, 4.5))
    axes = figure.subplots()
    sets = list(dict.fromkeys(row["context"] for row in rows))
    lines = []
    for pooling, name in product(POOLINGS, sets):
        found = select(rows, pooling=pooling, context=name)
        if pooling == "frequency-pooled":
            axes.scatter([row["x"] for row in found], [row["y"] for row in found], label=name)
        cells = [np.mean([row[column] for row in found]) for column in ("to_itself", "to_nearest_other")]
        shares = [np.mean([row[column] for row in found]) for column in ("nearest_is_itself", "common_share")]
        # In the own context documents move by the draw alone.
        shown = [f"{share:.0%}" for share in shares[: 1 if name == sets[0] else 2]]
        lines.append([pooling, name, *(f"{cell:.3f}" for cell in cells), *shown, *[""] * (2 - len(shown))])
    axes.legend(title="context from", fontsize=7)
    axes.set_title("One document in many contexts (PCA), frequency-pooled")
    foreign = [row for row in rows if row["context"] != sets[0]]
    means = {
        (pooling, column): np.mean([row[column] for row in select(foreign, pooling=pooling)])
        for pooling, column in product(POOLINGS, ("to_itself", "common_share", "nearest_is_itself"))
    }
    finding = "In the context of another set, " + "; ".join(
        f"{pooling}: a document's vector has a cosine of {means[pooling, 'to_itself']:.2f} with itself, is nearer to "
        f"itself than to any other document in {means[pooling, 'nearest_is_itself']:.0%} of the cases, and shares "
        f"{means[pooling, 'common_share']:.0%} of its shift with all documents"
        for pooling in POOLINGS
    )
    header = ["pooling", "context from", "cosine to itself", "to nearest other", "nearest is itself", "common shift"]
    text = f"""## Setting

T1's model in prefix attention from contextual batches, first seed, with the plain mean and with frequency pooling at
test time: {NUM_DOCUMENTS} documents of {sets[0]} in {NUM_DRAWS} contexts of 64 documents of each set. Cosines are with
the vectors in the first context of the own set. *common shift*: the squared length of the mean displacement of all
documents from there, as a share of the mean squared length of their displacements. A shift that all documents share
hardly changes their ranking.

{markdown_table(header, lines)}
## Against the paper

In the paper, vectors move with the context, yet stay nearer to themselves than to other documents."""
    return Page(f"{finding}.", text, {"contexts": figure})


EXPERIMENT = Experiment(
    name="F13",
    title="A document's vector in many contexts",
    claim="Vectors move with the context, yet stay nearer to themselves than to other documents.",
    minutes=10,
    run=run,
    report=report,
)
