"""P1: distance of a corpus' word statistics from the training data, and the gap between a model and BM25."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import pearsonr, spearmanr
from sklearn.feature_extraction.text import CountVectorizer

from .runner.config import RunConfig
from .runner.experiment import Experiment, Page, Setting
from .runner.scoring import score_bm25, score_model
from .runner.sets import EvaluationConfig, cut_texts, load_sets
from .runner.sweep import quick_evaluation
from .runner.table import Row, markdown_table


# Evaluation sets contain their documents.
LEFT_OUT_DOMAINS = ("nfcorpus_train", "regulatory_obliqa_dev")
PAIRS_PER_DOMAIN = 500


def inverse_frequencies(documents: Sequence[str]) -> dict[str, float]:
    """Inverse document frequency of each word."""
    vectorizer = CountVectorizer(binary=True)
    counts = np.asarray(vectorizer.fit_transform(documents).sum(axis=0)).ravel()
    names = vectorizer.get_feature_names_out()
    return dict(zip(names, np.log((len(documents) + 1) / (counts + 0.5)), strict=True))


def divergence(documents: Sequence[str], reference: dict[str, float], unseen: float) -> float:
    """Mean absolute difference of a corpus' inverse frequencies from the reference's, over the words of its texts."""
    own = inverse_frequencies(documents)
    weights = {word: np.exp(-value) for word, value in own.items()}
    total = sum(weights.values())
    return sum(weights[word] * abs(value - reference.get(word, unseen)) for word, value in own.items()) / total


def run(setting: Setting) -> list[Row]:
    """Divergence and scores of all sets."""
    workspace = setting.workspace
    names = tuple(sorted(path.name for path in (workspace.data_folder / "eval").iterdir()))
    evaluation = EvaluationConfig(names, contexts=("own",), max_queries=100, max_documents=300)
    domains = sorted(path.name.removesuffix(".jsonl.gz") for path in (workspace.data_folder / "train").iterdir())
    domains = tuple(name for name in domains if name not in LEFT_OUT_DOMAINS)
    if setting.is_quick:
        evaluation, domains = quick_evaluation(evaluation), domains[:2]
    documents = cut_texts(workspace.load_pairs(domains, PAIRS_PER_DOMAIN)[0]["document"][:], evaluation.max_length)
    reference, unseen = inverse_frequencies(documents), float(np.log((len(documents) + 1) / 0.5))
    encoder = workspace.load_encoder(RunConfig())
    scores = {
        "bm25": score_bm25(workspace, evaluation)["none"],
        "plain": score_model(workspace, encoder, evaluation, "plain")["none"],
        "pooled": score_model(workspace, encoder, evaluation, "frequency-pooled")["own"],
    }
    return [
        {
            "set": each.name,
            "divergence": divergence(list(each.corpus.values()), reference, unseen),
            **{name: part[each.name] for name, part in scores.items()},
        }
        for each in load_sets(workspace, evaluation)
    ]


def report(rows: list[Row]) -> Page:
    """Correlations and a scatter."""
    rows = sorted(rows, key=lambda row: row["divergence"])
    divergences = [row["divergence"] for row in rows]
    gaps = [row["plain"] - row["bm25"] for row in rows]
    gains = [row["pooled"] - row["plain"] for row in rows]
    (gap, gap_p), (rank, _) = pearsonr(divergences, gaps), spearmanr(divergences, gaps)
    (gain, gain_p), (gain_rank, _) = pearsonr(divergences, gains), spearmanr(divergences, gains)
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    axes.scatter(divergences, gaps)
    for row, value in zip(rows, gaps, strict=True):
        axes.annotate(row["set"], (row["divergence"], value), fontsize=6)
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set_xlabel("divergence of inverse document frequencies")
    axes.set_ylabel("all-MiniLM-L6-v2 minus BM25, NDCG@10")
    is_like = gap < 0 and gap_p < 0.05
    finding = (
        f"Over {len(rows)} sets the correlation of divergence with all-MiniLM-L6-v2's lead over BM25 is {gap:+.2f} "
        f"(Pearson, p = {gap_p:.2f}; Spearman {rank:+.2f}), with the gain of context-frequency pooling {gain:+.2f} "
        f"(p = {gain_p:.2f}; {gain_rank:+.2f})."
    )
    lines = [
        [row["set"], f"{row['divergence']:.2f}", *(f"{row[name]:.1f}" for name in ("bm25", "plain", "pooled"))]
        for row in rows
    ]
    text = f"""## Setting

all-MiniLM-L6-v2, unchanged, and BM25 on at most 300 documents (plus the positive ones) and 100 queries of each set.
All texts are cut to 48 tokens. *pooled* has context-frequency pooling with 64 documents of the set. The paper does not
define its divergence. Ours is the mean absolute difference of inverse document frequencies, weighted by the share of
the set's documents that contain a word. The statistics of the model's own training data are unknown. Instead we use
{PAIRS_PER_DOMAIN} documents of each of about thirty domains, a third of them from Reddit, cut to 48 tokens.

{markdown_table(["set", "divergence", "BM25", "MiniLM", "pooled"], lines)}
## Against the paper

The paper reports a very high correlation: models fall further behind BM25 on corpora that are further from training.
{"Our sets show it too." if is_like else "In our sets the correlation is within chance."}"""
    return Page(finding, text, {"divergence": figure})


EXPERIMENT = Experiment(
    name="P1",
    title="Divergence of word statistics and the gap to BM25",
    claim="Models fall further behind BM25 on corpora whose IDF statistics are further from training.",
    minutes=8,
    run=run,
    report=report,
)
