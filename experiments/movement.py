"""F13: how far the vector of a document moves when the context changes, beside its distance from other documents."""

import random

import main_table
import numpy as np
from matplotlib.figure import Figure
from runner.experiment import Experiment, Page, Setting
from runner.scoring import load_system
from runner.sets import load_sets
from runner.sweep import quick_evaluation, quick_run
from runner.table import Row, markdown_table, select
from runner.training import train_run
from sklearn.decomposition import PCA
from tqdm.auto import tqdm


NUM_DOCUMENTS = 100
NUM_DRAWS = 6


def run(setting: Setting) -> list[Row]:
    """Vectors of documents of the first set in contexts of all sets, by T1's model with frequency pooling."""
    config = main_table.base_run(architecture="prefix")
    evaluation = main_table.EVALUATION
    if setting.is_quick:
        config, evaluation = quick_run(config), quick_evaluation(evaluation)
    folder = train_run(setting.workspace, config)
    embedder = load_system(folder, "contextual, frequency-pooled", evaluation.max_length)
    sets = load_sets(setting.workspace, evaluation)
    documents = list(sets[0].corpus.values())[:NUM_DOCUMENTS]
    vectors, names = [], []
    for retrieval_set in tqdm(sets, desc="Contexts"):
        texts = sorted(retrieval_set.corpus.values())
        for draw in range(NUM_DRAWS):
            embedder.set_context(random.Random(draw).sample(texts, min(evaluation.context_size, len(texts))))
            vectors.append(embedder.embed_documents(documents))
            names.append(retrieval_set.name)
    return measure(np.stack(vectors), names)


def measure(vectors: np.ndarray, names: list[str]) -> list[Row]:
    """
    A row for each context: where the first document lies, and how near documents are to themselves and to others.

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
        rows.append(
            {
                "context": name,
                "draw": number % NUM_DRAWS,
                "x": float(points[number, 0]),
                "y": float(points[number, 1]),
                "to_itself": float(scores.diagonal().mean()),
                "to_nearest_other": float(others.mean()),
                "nearest_is_itself": float((scores.diagonal() > others).mean()),
            }
        )
    return rows


def report(rows: list[Row]) -> Page:
    """Similarities and the picture."""
    figure = Figure(figsize=(6, 4.5))
    axes = figure.subplots()
    lines = []
    for name in dict.fromkeys(row["context"] for row in rows):
        found = select(rows, context=name)
        axes.scatter([row["x"] for row in found], [row["y"] for row in found], label=name)
        cells = [np.mean([row[column] for row in found]) for column in ("to_itself", "to_nearest_other")]
        share = np.mean([row["nearest_is_itself"] for row in found])
        lines.append([name, *(f"{cell:.3f}" for cell in cells), f"{share:.0%}"])
    axes.legend(title="context from", fontsize=7)
    axes.set_title("One document in many contexts (PCA)")
    share = np.mean([row["nearest_is_itself"] for row in rows])
    cosine = np.mean([row["to_itself"] for row in rows[1:]])
    finding = (
        f"A document's vector in another context has the cosine {cosine:.2f} with itself, and in {share:.0%} of the "
        "cases it is nearer to itself than to any other document."
    )
    text = f"""## Setting

T1's model in prefix attention with frequency pooling, first seed: {NUM_DOCUMENTS} documents of {rows[0]["context"]} in
{NUM_DRAWS} contexts of 64 documents of each set. Cosines are with the vectors in the first context of the own set.

{markdown_table(["context from", "cosine to itself", "to the nearest other", "nearest is itself"], lines)}
## Against the paper

There, vectors move with the context, yet stay nearer to themselves than to other documents."""
    return Page(finding, text, {"contexts": figure})


EXPERIMENT = Experiment(
    name="F13",
    title="A document's vector in many contexts",
    claim="Vectors move with the context, yet stay nearer to themselves than to those of other documents.",
    minutes=3,
    run=run,
    report=report,
)
