"""What a dry run foretells, against the plan that is made."""

import json

import pytest

from cde_hf.batching import KMeansSettings, TfidfSurrogate, prepare_batch_plan
from cde_hf.batching.clustering import num_multiplications
from cde_hf.batching.costs import estimate_costs
from cde_hf.cli import main


def size_on_disk(folder):
    return sum(path.stat().st_size for path in folder.glob("*.npy"))


def test_disk_and_clusters_are_those_of_the_plan(pairs, plan):
    costs = estimate_costs(pairs, surrogate=TfidfSurrogate(dim=16), cluster_size=30)
    assert (costs.num_pairs, costs.num_clusters) == (240, len(plan.centroids))
    assert costs.disk == pytest.approx(size_on_disk(plan.folder), rel=0.1)
    assert costs.memory > 0 and costs.encoding_hours > 0 and costs.clustering_hours > 0


def test_hard_negatives_and_a_second_surrogate_are_counted(pairs, tmp_path):
    rows = pairs.add_column("negatives", [[f"other {number} text", "word"] for number in range(len(pairs))])
    settings = {"surrogate": TfidfSurrogate(dim=16), "filter_surrogate": TfidfSurrogate(dim=24), "dtype": "float32"}
    plan = prepare_batch_plan(rows, tmp_path / "plan", cluster_size=30, **settings)
    costs = estimate_costs(rows, cluster_size=30, **settings)
    assert costs.disk == pytest.approx(size_on_disk(plan.folder), rel=0.1)


def test_two_levels_grow_by_the_power_of_one_and_a_half():
    settings = KMeansSettings(max_training_pairs=10**9)
    work = [num_multiplications(size, size // 256, 64, settings) for size in (200_000, 800_000)]
    assert work[1] / work[0] == pytest.approx(8, rel=0.01)


def test_a_dry_run_writes_no_plan(pairs, tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in pairs.select_columns(["query", "document"])))
    main(["prepare", str(path), str(tmp_path / "plan"), "--dry-run", "--surrogate-dim", "16"])
    output = capsys.readouterr().out
    assert "240 pairs, about 1 cluster." in output and "disk" in output and "It was not written." in output
    assert not (tmp_path / "plan").exists()
