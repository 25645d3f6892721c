"""One self-contained HTML page about a batch plan, with samples of its texts: do the clusters make sense?"""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from ..files import write_text
from ..messages import count_of
from .batch_plan import BatchPlan
from .false_negatives import FalseNegativeFilter
from .sampler import ClusteredBatchSampler
from .statistics import hardness_by_cluster_size


_MAX_CHARACTERS = 300
_MAX_CHARACTERS_IN_TERMINAL = 100
_BATCH_SIZE = 64
_NUM_CLUSTERS = 12
_NUM_PAIRS = 6  # of a cluster, and of a batch

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #d5dae1; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .3rem .8rem; text-align: left; vertical-align:
top; } th { background: #eef1f5; } tr + tr { border-top: 1px solid #e4e8ee; }
svg text { font: 12px system-ui, sans-serif; fill: #4a5565; } svg rect { fill: #3d6fb4; }
details { margin: .5rem 0; } summary { cursor: pointer; } p.note { color: #4a5565; }
"""


def collect_samples(plan: BatchPlan, dataset: Dataset) -> dict[str, Any]:
    """
    Samples clusters, a batch and filtered negatives of a plan, for a person to judge.

    Args:
        plan (`BatchPlan`):
            The plan.
        dataset (`datasets.Dataset`):
            The data set of the plan.

    Returns:
        `dict`: `clusters` has the domain, size and text pairs of each cluster. `batch` has its size, and some queries,
        each with its positive, its hardest negative, the scores of both, and how many documents the filter removes.
        `filtered` has the query, its positive, the filtered document, and the scores of both.
    """
    generator = np.random.default_rng(0)
    sizes = np.bincount(plan.cluster_ids, minlength=len(plan.centroids))
    eligible = np.flatnonzero(sizes >= 2)
    drawn = generator.choice(eligible, min(_NUM_CLUSTERS, len(eligible)), replace=False)
    clusters, filtered = [], []
    for cluster in drawn:
        members = np.flatnonzero(plan.cluster_ids == cluster)
        rows = generator.permutation(members)[:_NUM_PAIRS]
        texts = [_pair(dataset, row) for row in rows]
        domain = plan.domains[plan.cluster_domains[cluster]]
        clusters.append({"domain": domain, "size": int(sizes[cluster]), "pairs": texts})
        filtered.extend(_filtered(plan, dataset, generator.permutation(members)[:64], domain))
    return {"clusters": clusters, "batch": _sample_batch(plan, dataset), "filtered": filtered}


def _sample_batch(plan: BatchPlan, dataset: Dataset) -> dict[str, Any]:
    """Some queries of a batch, as a training sees them."""
    size = min(_BATCH_SIZE, int(np.bincount(plan.domain_ids).max()))
    rows = np.asarray(next(iter(ClusteredBatchSampler(plan, size))))
    scores, is_false = (part[:, :size] for part in FalseNegativeFilter(plan)(rows))
    negatives = np.where(is_false | np.eye(size, dtype=bool), -np.inf, scores)
    queries = []
    for place in range(min(_NUM_PAIRS, size)):
        hardest = int(negatives[place].argmax())
        if np.isfinite(negatives[place, hardest]):
            negative = {
                "hardest": _pair(dataset, rows[hardest])["document"],
                "hardest_score": round(float(scores[place, hardest]), 3),
            }
        else:
            negative = {"hardest": "", "hardest_score": 0.0}
        score = round(float(scores[place, place]), 3)
        found = {**_pair(dataset, rows[place]), "score": score, **negative, "num_filtered": int(is_false[place].sum())}
        queries.append(found)
    return {"size": size, "queries": queries}


def _filtered(plan: BatchPlan, dataset: Dataset, rows: np.ndarray, domain: str) -> list[dict[str, Any]]:
    """Returns at most two documents that the filter removes from a batch of one cluster."""
    scores, is_false = FalseNegativeFilter(plan)(rows)
    queries, documents = np.nonzero(is_false[:, : len(rows)])
    found = []
    for query, document in list(zip(queries, documents, strict=True))[:2]:
        positive, other = _pair(dataset, rows[query]), _pair(dataset, rows[document])
        found.append(
            {
                "domain": domain,
                **positive,
                "score": round(float(scores[query, query]), 3),
                "left_out": other["document"],
                "left_out_score": round(float(scores[query, document]), 3),
            }
        )
    return found


def _pair(dataset: Dataset, row: int) -> dict[str, str]:
    texts = dataset[int(row)]
    return {side: texts[side][:_MAX_CHARACTERS] for side in ("query", "document")}


def write_inspection_page(plan: BatchPlan, path: str | Path) -> None:
    """
    Writes the page.

    Args:
        plan (`BatchPlan`):
            The plan.
        path (`str` or `Path`):
            HTML file to write.
    """
    path = Path(path)
    samples = json.loads((plan.folder / "samples.json").read_text(encoding="utf-8"))
    sections = [
        _overview(plan),
        _cluster_sizes(plan),
        _hardness(plan),
        _filtered_share(plan),
        _sample_clusters(samples["clusters"]),
        _batch(samples["batch"]),
        _filtered_negatives(samples["filtered"]),
    ]
    page = (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<title>Batch plan {_text(plan.folder.name)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Batch plan {_text(plan.folder.name)}</h1>{''.join(sections)}</body></html>\n"
    )
    write_text(path, page)


def format_statistics(plan: BatchPlan) -> str:
    """Formats the statistics of a plan for the terminal."""
    statistics, manifest = plan.manifest["statistics"], plan.manifest
    smallest, quarter, median, three_quarters, largest = statistics["cluster_size_quantiles"]
    lines = [
        ", ".join(
            [
                count_of(manifest["num_pairs"], "pair"),
                count_of(len(plan.domains), "domain"),
                count_of(statistics["num_clusters"], "cluster"),
            ]
        ),
        f"cluster sizes: {smallest} smallest, {quarter} / {median} / {three_quarters} quartiles, {largest} largest",
        f"surrogate: {_describe(manifest['surrogate'])}; filter: "
        f"{_describe(manifest['filter_surrogate'] or manifest['surrogate'])}",
        "",
        f"{'batch':>6}  {'grouping':<8}  {'hardness':>8}  {'filtered':>8}",
    ]
    for entry in statistics["batches"]:
        lines.append(
            f"{entry['batch_size']:>6}  {entry['grouping']:<8}  {entry['hardness']:>8.3f}  "
            f"{entry['filtered_share']:>8.1%}"
        )
    return "\n".join(lines)


def format_batch(plan: BatchPlan) -> str:
    """Formats some queries of a batch for the terminal, with the documents that training treats as wrong."""
    batch = json.loads((plan.folder / "samples.json").read_text(encoding="utf-8"))["batch"]
    lines = [f"In a batch of {batch['size']} pairs (surrogate scores in brackets):"]
    for entry in batch["queries"][:3]:
        lines += [
            "",
            f"  query             {_one_line(entry['query'])}",
            f"  its document      {_one_line(entry['document'])} ({entry['score']})",
            f"  hardest negative  {_one_line(entry['hardest'])} ({entry['hardest_score']})",
            f"  filtered          {count_of(entry['num_filtered'], 'document')}",
        ]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    text, width = " ".join(text.split()), _MAX_CHARACTERS_IN_TERMINAL
    return text if len(text) <= width else f"{text[:width]}…"


def _overview(plan: BatchPlan) -> str:
    manifest, statistics = plan.manifest, plan.manifest["statistics"]
    rows = [
        ("Pairs", f"{manifest['num_pairs']:,}"),
        ("Domains", f"{len(plan.domains):,}"),
        ("Clusters", f"{statistics['num_clusters']:,}, target size {manifest['cluster_size']}"),
        ("Clustering", _describe(manifest["clustering"])),
        ("Surrogate", _describe(manifest["surrogate"])),
        ("Filter surrogate", _describe(manifest["filter_surrogate"] or manifest["surrogate"])),
        ("Data fingerprint", manifest["data_fingerprint"]),
    ]
    domains = [
        (name, f"{entry['num_pairs']:,}", f"{entry['num_clusters']:,}")
        for name, entry in statistics["domains"].items()
    ]
    table = _table(("Domain", "Pairs", "Clusters"), domains)
    return _table(("Plan", ""), rows) + f"<details><summary>All domains</summary>{table}</details>"


def _cluster_sizes(plan: BatchPlan) -> str:
    sizes = np.bincount(plan.cluster_ids, minlength=len(plan.centroids))
    counts, edges = np.histogram(sizes, bins=min(20, max(1, sizes.max() - sizes.min())))
    labels = [f"{round(low)}–{round(high)}" for low, high in zip(edges[:-1], edges[1:], strict=True)]
    return "<h2>Cluster sizes</h2><p class='note'>Number of clusters by number of pairs.</p>" + _bars(labels, counts)


def _hardness(plan: BatchPlan) -> str:
    entries = plan.manifest["statistics"]["batches"]
    rows = [
        (entry["batch_size"], entry["grouping"], f"{entry['hardness']:.3f}", f"{entry['filtered_share']:.1%}")
        for entry in entries
    ]
    by_size = [
        (entry["batch_size"], f"{entry['smallest']}–{entry['largest']}", f"{entry['hardness']:.3f}")
        for entry in hardness_by_cluster_size(plan)
    ]
    return (
        "<h2>Hardness</h2><p class='note'>Mean surrogate score of the queries of a batch with the other pairs' "
        "documents. Batches from one cluster should be harder than batches from one domain, which should be harder "
        "than random batches.</p>"
        + _table(("Batch size", "Grouping", "Hardness", "Filtered negatives"), rows)
        + "<p class='note'>Batches by the size of the cluster that most of their pairs come from.</p>"
        + _table(("Batch size", "Cluster size", "Hardness"), by_size)
    )


def _filtered_share(plan: BatchPlan) -> str:
    entries = [entry for entry in plan.manifest["statistics"]["batches"] if entry["grouping"] == "cluster"]
    if not entries:
        return ""
    # The batch size whose sample covers the most domains.
    entry = max(entries, key=lambda entry: len(entry["filtered_share_of_domains"]))
    shares = entry["filtered_share_of_domains"]
    labels, values = list(shares), [100 * share for share in shares.values()]
    return (
        "<h2>Filtered negatives by domain</h2><p class='note'>Percent of the in-batch negatives that the filter "
        f"removes in batches of {_text(entry['batch_size'])}.</p>" + _bars(labels, values)
    )


def _sample_clusters(clusters: list[dict[str, Any]]) -> str:
    parts = ["<h2>Sample clusters</h2><p class='note'>Are the documents of a cluster hard to tell apart?</p>"]
    for cluster in clusters:
        rows = [(pair["query"], pair["document"]) for pair in cluster["pairs"]]
        title = f"{_text(cluster['domain'])}, {_text(cluster['size'])} pairs"
        parts.append(f"<details open><summary>{title}</summary>{_table(('Query', 'Document'), rows)}</details>")
    return "".join(parts)


def _batch(batch: dict[str, Any]) -> str:
    rows = [
        (
            entry["query"],
            f"{entry['document']} ({entry['score']})",
            f"{entry['hardest']} ({entry['hardest_score']})",
            entry["num_filtered"],
        )
        for entry in batch["queries"]
    ]
    return (
        f"<h2>In a batch</h2><p class='note'>Some queries of a batch of {_text(batch['size'])} pairs, each with the "
        "most similar document that counts as wrong. Is it wrong? Surrogate scores in brackets, and the number of "
        "documents that the filter removes.</p>"
        + _table(("Query", "Its document", "Hardest negative", "Filtered"), rows)
    )


def _filtered_negatives(filtered: list[dict[str, Any]]) -> str:
    rows = [
        (entry["query"], f"{entry['document']} ({entry['score']})", f"{entry['left_out']} ({entry['left_out_score']})")
        for entry in filtered
    ]
    return (
        "<h2>Negatives that the filter removes</h2><p class='note'>Does the document on the right answer the query "
        "as well? Surrogate scores in brackets.</p>" + _table(("Query", "Its document", "Filtered negative"), rows)
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _bars(labels: Sequence[str], values: Sequence[float] | np.ndarray) -> str:
    height, label_width, bar_width = 20, 220, 400
    largest = max(max(values), 1e-9)
    parts = []
    for place, (label, value) in enumerate(zip(labels, values, strict=True)):
        top, length = place * height, bar_width * value / largest
        parts.append(
            f"<text x='{label_width - 8}' y='{top + 14}' text-anchor='end'>{_text(label)}</text>"
            f"<rect x='{label_width}' y='{top + 3}' width='{length:.1f}' height='{height - 6}'/>"
            f"<text x='{label_width + length + 6:.1f}' y='{top + 14}'>{value:,.4g}</text>"
        )
    width = label_width + bar_width + 80
    return f"<svg width='{width}' height='{height * len(labels)}' role='img'>{''.join(parts)}</svg>"


def _describe(settings: dict[str, Any]) -> str:
    settings = dict(settings)
    kind = settings.pop("kind")
    return f"{kind} ({', '.join(f'{name} {value}' for name, value in settings.items())})"


def _text(value: object) -> str:
    return html.escape(str(value))


__all__ = ["collect_samples", "format_batch", "format_statistics", "write_inspection_page"]
