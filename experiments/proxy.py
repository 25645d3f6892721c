"""
proxy: does `cde-hf evaluate --corpus` tell without labels whether contextualizing helps?

Pseudo-queries are made from the corpus of each evaluation set. The gain on them is compared with the gain on the
judged queries, which `corpus-part` measures.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from cde_hf import load_retrieval_set, model_path
from cde_hf.data import pseudo_retrieval_set
from cde_hf.evaluation import compare_scores

from .corpus_part import MAX_LENGTH, MINILM, OWN, PLAIN, EncodedSet, make_fit, measure, own_scores
from .frequency_pooling import Scores, percent
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_json
from .runner.table import Row, markdown_table


MAX_DOCUMENTS = 1400
NUM_QUERIES = 500


def score_proxy(model: SentenceTransformer, folder: Path) -> dict[str, Scores]:
    """Scores on the pseudo-queries of a corpus, plain and contextualized."""
    encoded = EncodedSet(model, pseudo_retrieval_set(folder.name, folder, num_queries=NUM_QUERIES))
    queries, documents = encoded.dense(None, 0, 0)
    return {PLAIN: encoded.score(queries @ documents.T), OWN: own_scores(encoded, make_fit(model))}


def run(setting: Setting) -> list[Row]:
    """The gain of contextualizing all-MiniLM-L6-v2 on judged queries and on pseudo-queries of the same corpora."""
    paths = sorted((setting.workspace.data_folder / "eval").iterdir())
    sets = [load_retrieval_set(path) for path in paths]
    pairs = [pair for pair in zip(paths, sets, strict=True) if len(pair[1].corpus) <= MAX_DOCUMENTS]
    if setting.is_quick:
        pairs = sorted(pairs, key=lambda pair: len(pair[1].corpus))[:2]
    model = SentenceTransformer(model_path("minilm"), device="cpu")
    model.max_seq_length = MAX_LENGTH
    folder = setting.workspace.runs / "corpus_part" / MINILM
    judged = measure(model, [part for _, part in pairs], sets, folder / "eval")
    rows = []
    for path, _ in tqdm(pairs, desc="proxies"):
        kept = folder / "proxy" / f"{path.name}.json"
        if not kept.exists():
            write_json(kept, score_proxy(model, path))
        proxy = json.loads(kept.read_text(encoding="utf-8"))
        both = {"proxy": (proxy[PLAIN], proxy[OWN]), "judged": (judged[PLAIN][path.name], judged[OWN][path.name])}
        for kind, (plain, own) in both.items():
            comparison = compare_scores([plain], [own])
            row = {"set": path.name, "queries": kind, "plain": percent(plain), "own": percent(own)}
            rows.append({**row, "gain": 100 * comparison.difference, "p": comparison.p_value})
    return rows


def report(rows: list[Row]) -> Page:
    """The table, and how often both agree."""
    by_set: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_set.setdefault(row["set"], {})[row["queries"]] = row
    gains = np.array([[parts[kind]["gain"] for kind in ("proxy", "judged")] for parts in by_set.values()])
    num_agree = int((np.sign(gains[:, 0]) == np.sign(gains[:, 1])).sum())
    judged_losses = [name for name, parts in by_set.items() if parts["judged"]["gain"] <= 0]
    lines = [
        [
            name,
            *(
                cell
                for kind in ("proxy", "judged")
                for cell in (
                    f"{parts[kind]['plain']:.1f}",
                    f"{parts[kind]['own']:.1f}",
                    f"{parts[kind]['gain']:+.1f}",
                    f"{parts[kind]['p']:.4f}",
                )
            ),
        ]
        for name, parts in by_set.items()
    ]
    header = ["set", *(f"{kind} {part}" for kind in ("proxy:", "judged:") for part in ("plain", "own", "gain", "p"))]
    rank = (
        f" Spearman's correlation of the gains is {spearmanr(gains[:, 0], gains[:, 1])[0]:.2f}."
        if len(gains) > 2
        else ""
    )
    finding = (
        f"The proxy's gain and the judged gain have the same sign on {num_agree} of {len(by_set)} sets.{rank} "
        f"Contextualizing does not gain on the judged queries of {len(judged_losses)} of them"
        f"{': ' + ', '.join(judged_losses) if judged_losses else ''}."
    )
    text = f"""## Setting

all-MiniLM-L6-v2, texts of {MAX_LENGTH} tokens, the sets of at most {MAX_DOCUMENTS:,} documents. *proxy* has at most
{NUM_QUERIES} titles or sentences of the corpus as queries, *judged* the queries of the set. *own* is the
contextualized model. `p` is from a paired randomisation test over the queries.

{markdown_table(header, lines)}"""
    return Page(finding, text, {"gains": gains_figure(by_set)})


def gains_figure(by_set: dict[str, dict[str, Row]]) -> Figure:
    """Judged gain over the gain on the proxy."""
    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    points: Sequence[tuple[float, float]] = [
        (parts["proxy"]["gain"], parts["judged"]["gain"]) for parts in by_set.values()
    ]
    axes.scatter([x for x, _ in points], [y for _, y in points])
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.axvline(0, color="gray", linewidth=0.8)
    axes.set_xlabel("gain on pseudo-queries, points of NDCG@10")
    axes.set_ylabel("gain on judged queries")
    return figure


EXPERIMENT = Experiment(
    name="proxy",
    title="Does a corpus tell by itself whether contextualizing helps?",
    claim="Queries made from the corpus show with the right sign whether contextualizing helps.",
    minutes=30,
    run=run,
    report=report,
)
