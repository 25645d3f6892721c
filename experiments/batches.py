"""F5 and F12: how hard batches are by the surrogate alone, without any training."""

from collections.abc import Iterator, Sequence
from itertools import chain, count, islice, product

import numpy as np
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from cde_hf import ClusteredBatchSampler, FalseNegativeFilter
from cde_hf.batching import surrogate_scores

from .main_table import base_run
from .runner.experiment import Experiment, Page, Setting
from .runner.sweep import quick_run
from .runner.table import Row, markdown_table, select


CLUSTER_SIZES = (16, 64, 256, 1024)
BATCH_SIZES = (16, 64, 256, 1024)
NUM_BATCHES = 1000
NUM_FILTERED_BATCHES = 50  # of these; the filter is slower


def all_epochs(sampler: ClusteredBatchSampler) -> Iterator[list[int]]:
    """Batches without end."""

    def epoch(number: int) -> Iterator[list[int]]:
        sampler.set_epoch(number)
        return iter(sampler)

    return chain.from_iterable(map(epoch, count()))


def measure(setting: Setting, batch_size: int, grouping: str = "cluster", **fields) -> Row:
    """Mean hardness, its standard deviation over batches, and the filtered share, of batches of T1's pairs."""
    config = base_run(**fields)
    num_batches = NUM_BATCHES
    if setting.is_quick:
        config, num_batches, batch_size = quick_run(config), 20, min(batch_size, 64)
    plan = setting.workspace.load_plan(config)
    sampler = ClusteredBatchSampler(plan, batch_size, grouping=grouping, cluster_order=config.cluster_order)
    false_negatives = FalseNegativeFilter(plan)
    is_negative = ~np.eye(batch_size, dtype=bool)
    hardness, filtered = [], []
    for number, rows in enumerate(islice(all_epochs(sampler), num_batches)):
        rows = np.asarray(rows)
        hardness.append(float(surrogate_scores(plan, rows)[is_negative].mean()))
        if number < NUM_FILTERED_BATCHES:
            filtered.append(float(false_negatives(rows)[1][is_negative].mean()))
    return {
        "hardness": float(np.mean(hardness)),
        "spread": float(np.std(hardness)),
        "filtered_share": float(np.mean(filtered)),
        "num_batches": num_batches,
    }


def run_sizes(setting: Setting) -> list[Row]:
    """Cluster size by batch size, and batches without clusters."""
    kinds = [("cluster", size) for size in CLUSTER_SIZES] + [("domain", 0), ("random", 0)]
    rows = []
    for (grouping, cluster_size), batch_size in tqdm(list(product(kinds, BATCH_SIZES)), desc="Hardness"):
        fields = {"cluster_size": cluster_size} if cluster_size else {}
        columns = {"grouping": grouping, "cluster_size": cluster_size, "batch_size": batch_size}
        rows.append(columns | measure(setting, batch_size, grouping, **fields))
    return rows


def report_sizes(rows: list[Row]) -> Page:
    """Table, plot and the order."""
    kinds = list(dict.fromkeys((row["grouping"], row["cluster_size"]) for row in rows))
    sizes = sorted({row["batch_size"] for row in rows})
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    lines = []
    for grouping, cluster_size in kinds:
        found = [select(rows, grouping=grouping, cluster_size=cluster_size, batch_size=size)[0] for size in sizes]
        name = f"clusters of {cluster_size}" if cluster_size else f"no clusters, {grouping}"
        lines.append([name, *(_hardness(row) for row in found)])
        axes.plot(sizes, [row["hardness"] for row in found], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("batch size")
    axes.set_ylabel("hardness")
    axes.legend()
    clustered = select(rows, grouping="cluster")
    ordered = [size for size in sizes if _is_falling([row["hardness"] for row in select(clustered, batch_size=size)])]
    larger_is_easier = all(
        _is_falling([row["hardness"] for row in select(clustered, cluster_size=size)])
        for size in {row["cluster_size"] for row in clustered}
    )
    finding = (
        f"Larger batches are {'always' if larger_is_easier else 'not always'} easier. Smaller clusters are always "
        f"harder in batches of {', '.join(map(str, ordered)) or 'no size'}, out of {', '.join(map(str, sizes))}."
    )
    text = f"""## Setting

The pairs of T1: ten domains of 2,000 pairs. The hardness of a batch is the mean TF-IDF score of its queries with the
other pairs' documents. ± is its standard deviation over {rows[0]["num_batches"]} batches.

{markdown_table(["batch of", *(str(size) for size in sizes)], lines)}
Without a margin, the filter removes this share of the negatives:

{markdown_table(["batch of", *(str(size) for size in sizes)], _filtered_lines(rows, kinds, sizes))}
## Against the paper

The paper shows the same order for GTR vectors and batches of 256 to 4,096 out of hundreds of millions of pairs. Here a
domain has 2,000 pairs. A batch that is larger than its cluster is filled from neighbouring clusters, and a batch of
1,024 is half of a domain, however it is clustered. The spread is wide because the domains differ."""
    return Page(finding, text, {"hardness": figure})


def run_packing(setting: Setting) -> list[Row]:
    """Nearest clusters together, or random ones."""
    choices = list(product(CLUSTER_SIZES[:3], BATCH_SIZES[1:3], ("tour", "random")))
    return [
        {"cluster_size": cluster_size, "batch_size": batch_size, "cluster_order": order}
        | measure(setting, batch_size, cluster_size=cluster_size, cluster_order=order)
        for cluster_size, batch_size, order in tqdm(choices, desc="Packing")
    ]


def report_packing(rows: list[Row]) -> Page:
    """Table of both orders."""
    lines, gains = [], {}
    for cluster_size, batch_size in dict.fromkeys((row["cluster_size"], row["batch_size"]) for row in rows):
        tour, random = (
            select(rows, cluster_size=cluster_size, batch_size=batch_size, cluster_order=order)[0]
            for order in ("tour", "random")
        )
        gain = tour["hardness"] / random["hardness"] - 1
        gains[cluster_size, batch_size] = gain
        shares = f"{random['filtered_share']:.1%}", f"{tour['filtered_share']:.1%}"
        lines.append([cluster_size, batch_size, _hardness(random), _hardness(tour), f"{gain:+.0%}", *shares])
    best = max(gains, key=gains.get)
    finding = (
        f"The tour makes batches {min(gains.values()):+.0%} to {gains[best]:+.0%} harder, most with clusters of "
        f"{best[0]} in batches of {best[1]}."
    )
    header = ["cluster size", "batch size", "random", "tour", "gain", "filtered, random", "filtered, tour"]
    text = f"""## Setting

As in [F5](F5.md): hardness by TF-IDF scores, {rows[0]["num_batches"]} batches each. Where clusters are as large as a
batch, few batches take pairs from more than one cluster, so the order matters less.

{markdown_table(header, lines)}
## Against the paper

The paper shows a noisy gain in NDCG with the tour, larger with small clusters. We measured hardness only, not NDCG."""
    return Page(finding, text)


def _hardness(row: Row) -> str:
    return f"{row['hardness']:.3f} ± {row['spread']:.3f}"


def _filtered_lines(rows: list[Row], kinds: Sequence[tuple[str, int]], sizes: Sequence[int]) -> list[list[str]]:
    lines = []
    for grouping, cluster_size in kinds:
        found = [select(rows, grouping=grouping, cluster_size=cluster_size, batch_size=size)[0] for size in sizes]
        name = f"clusters of {cluster_size}" if cluster_size else f"no clusters, {grouping}"
        lines.append([name, *(f"{row['filtered_share']:.1%}" for row in found)])
    return lines


def _is_falling(values: Sequence[float]) -> bool:
    return all(high > low for high, low in zip(values, values[1:], strict=False))


SIZES = Experiment(
    name="F5",
    title="Hardness by batch and cluster size",
    claim="Larger batches are easier, and smaller clusters are harder.",
    minutes=5,
    run=run_sizes,
    report=report_sizes,
)
PACKING = Experiment(
    name="F12",
    title="Packing: nearest clusters together or random ones",
    claim="Clusters that fill a batch together should be neighbours, above all small clusters.",
    minutes=3,
    run=run_packing,
    report=report_packing,
)
