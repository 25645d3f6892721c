"""Tables come back as they were written, and pages are made from them alone."""

import re
from itertools import product
from pathlib import Path

import pytest

from experiments import (
    contexts,
    frequencies,
    grid,
    groupings,
    main_table,
    margins,
    negatives,
)
from experiments.__main__ import EXPERIMENTS, make_parser
from experiments.runner.experiment import Experiment, Page, Setting, write_page, write_results, write_summary
from experiments.runner.table import mean_and_spread, read_table, seed_means, show, write_table
from experiments.runner.workspace import Workspace


def make_rows(score):
    """Rows of all models of T1 and of those without training, of two seeds and two sets."""
    factors = [*main_table.runs().values()]
    ways = [("biencoder", "whitened"), *((name, "frequency-pooled") for name in ("biencoder", "joint", "prefix"))]
    for batches, (architecture, way) in product(("random", "contextual"), ways):
        factors.append({"architecture": architecture, "pooling": way, "batches": batches})
    return [
        {"run": "r", "seed": seed, **each, "context": context, "set": name, "ndcg@10": score(each, context) + seed}
        for seed in (0, 1)
        for each in factors
        for context in shown_contexts(each)
        for name in ("cacm", "se-ai")
    ]


def shown_contexts(factors):
    if factors["architecture"] in ("joint", "prefix"):
        return ("own", "foreign", "none")
    return ("own",) if factors["pooling"] in ("whitened", "frequency-pooled") else ("none",)


def paper_like(factors, context):
    gain = 2.0 * (factors["batches"] == "contextual") + 1.5 * (factors["architecture"] in ("joint", "prefix"))
    return 40.0 + gain + 0.5 * (factors["pooling"] == "frequency-pooled") - 2.0 * (context != "own")


def test_a_table_comes_back_as_it_was_written(tmp_path):
    rows = [{"run": "abc", "seed": 0, "ndcg@10": 12.5}, {"run": "1e5x", "seed": 1, "ndcg@10": 0.25}]
    write_table(tmp_path / "table.csv", rows)
    assert read_table(tmp_path / "table.csv") == rows
    with pytest.raises(ValueError, match="There is no result to write"):
        write_table(tmp_path / "table.csv", [])
    with pytest.raises(FileNotFoundError, match="Run the experiment first, without `--report`"):
        read_table(tmp_path / "other.csv")


def test_the_spread_is_over_seeds_of_the_mean_over_sets():
    rows = [{"seed": seed, "ndcg@10": value} for seed, value in ((0, 10.0), (0, 20.0), (1, 17.0), (1, 17.0))]
    assert seed_means(rows) == {0: 15.0, 1: 17.0}
    assert mean_and_spread([15.0, 17.0]) == (16.0, pytest.approx(2**0.5))
    assert show([15.0, 17.0]) == "16.0 ± 1.4"
    assert show([15.0]) == "15.0"


def test_the_checks_hold_where_the_order_is_that_of_the_paper():
    assert all(check.holds for check in main_table.check_claims(make_rows(paper_like)))
    flat = main_table.check_claims(make_rows(lambda factors, context: 40.0))
    assert not [check for check in flat if check.expectation.startswith("both at least 1.0")][0].holds


def test_a_page_is_made_from_the_table_alone_and_keeps_what_was_written_by_hand(tmp_path):
    write_table(tmp_path / "T1.csv", make_rows(paper_like))
    write_page(main_table.EXPERIMENT, tmp_path, "make it")
    page = tmp_path / "T1.md"
    first = page.read_text()
    assert "| biencoder, random batches | 38.5 | 38.5 | 38.5 ± 0.7 |" in first
    assert "`make it`" in first and (tmp_path / "T1_ndcg.svg").exists()
    page.write_text(first + "\n## What we do with it\n\nNothing yet.\n")
    write_page(main_table.EXPERIMENT, tmp_path, "make it")
    assert page.read_text() == first + "\n## What we do with it\n\nNothing yet.\n"


def context_rows(contexts, score, sets=("pets", "tales"), **columns):
    """Rows of the model in prefix attention, of two seeds, in some contexts."""
    factors = {"architecture": "prefix", "pooling": "frequency-pooled", "batches": "contextual"}
    return [
        {"seed": seed, **factors, **columns, "context": context, "set": name, "ndcg@10": score(name, context) + seed}
        for seed in (0, 1)
        for context in contexts
        for name in sets
    ]


def test_the_page_on_contexts_says_what_the_own_one_is_worth():
    rows = context_rows(
        ["own", "foreign", "random", "training", "none"], lambda _, context: 40.0 + 3 * (context == "own")
    )
    assert "+3.0 ± 0.0 over training" in contexts.report_kinds(rows).finding


def test_the_matrix_counts_where_the_own_context_is_best():
    rows = context_rows(["pets", "tales"], lambda name, context: 40.0 + 2 * (context == "pets"))
    assert "own best on 1 of 2, +0.0 ± 0.0" in contexts.MATRIX.report(rows).finding


def test_the_curve_has_a_point_for_each_number_of_documents():
    rows = context_rows(["none"], lambda *_: 40.0, size=0) + context_rows(["own"], lambda *_: 42.0, size=64)
    page = contexts.CURVE.report(rows)
    assert "40.5 without and 42.5 with 64 documents" in page.finding
    assert len(page.figures["sizes"].axes[0].lines[0].get_xdata()) == 2


def test_the_grid_tells_the_filter_and_the_correlation_with_hardness():
    rows = [
        {**row, "batch_size": batch_size, "cluster_size": 16, "filter": state, "hardness": 1 / batch_size}
        for state, sign in (("on", 1), ("off", -1))
        for batch_size in (16, 64, 128)
        for row in context_rows(["none"], lambda *_, gain=sign * 100 / batch_size: 40.0 + gain)
    ]
    finding = grid.report(rows).finding
    assert "correlate +1.00 with it and -1.00 without" in finding


def test_the_page_on_mined_negatives_says_what_most_of_them_are_worth():
    rows = [
        {**row, "negatives": count, "accuracy": 0.5 - count / 10}
        for count in negatives.COUNTS
        for row in context_rows(["none"], lambda *_, count=count: 40.0 - count)
    ]
    page = negatives.report(rows)
    assert "0: 40.5 ± 0.7, 1: 39.5 ± 0.7" in page.finding and "4 improve it by -4.0 ± 0.0 over 0" in page.finding
    assert "| 4 | 36.5 | 36.5 | 36.5 ± 0.7 | 10% |" in page.text


def test_the_page_on_margins_names_the_best_of_each_kind():
    filters = [("off", 0.0, 38.0), ("absolute", -0.1, 39.0), ("absolute", 0.0, 41.0), ("relative", 0.5, 40.0)]
    rows = [
        {**row, "filter": kind, "margin": margin, "filtered_share": 0.25}
        for kind, margin, score in filters
        for row in context_rows(["none"], lambda *_, score=score: score)
    ]
    page = margins.report(rows)
    assert "filter off 38.5 ± 0.7 (25% filtered), absolute margin +0.00 41.5" in page.finding
    assert "relative margin +0.50 40.5" in page.finding
    assert "| absolute margin -0.10 | 25.0% | 39.5 | 39.5 | 39.5 ± 0.7 |" in page.text


def test_the_page_on_groupings_tells_clusters_from_domains():
    scores = {("random", "off"): 40.0, ("domain", "off"): 41.0, ("domain", "on"): 41.5, ("cluster", "on"): 43.5}
    kinds = [(batches, state, 50, score) for (batches, state), score in scores.items()] + [("domain", "on", 100, 50.0)]
    rows = [
        {
            "seed": seed,
            "batches": batches,
            "filter": state,
            "steps": steps,
            "set": "cacm",
            "hardness": 0.25,
            "ndcg@10": score + seed,
        }
        for batches, state, steps, score in kinds
        for seed in (0, 1)
    ]
    page = groupings.report(rows)
    assert "clusters above one domain, with the filter +2.0 ± 0.0" in page.finding
    assert "| domain, filter on, 50 steps | 42.0 | 42.0 ± 0.7 | 0.25 |" in page.text
    assert "| domain, filter on, 100 steps | 50.5 | 50.5 ± 0.7 | 0.25 |" in page.text


def test_the_page_on_frequencies_tells_them_from_vectors():
    scores = {
        ("none", "none"): 36.0,
        ("none", "own"): 41.0,
        ("learned", "none"): 41.0,
        ("learned", "own"): 44.0,
        ("training", "none"): 42.0,
        ("training", "training"): 43.0,
        ("training", "own"): 44.0,
        ("own", "none"): 42.5,
        ("own", "own"): 46.0,
    }
    rows = [
        {"seed": seed, "vectors": vectors, "frequencies": frequencies, "set": "cacm", "ndcg@10": score}
        for (vectors, frequencies), score in scores.items()
        for seed in (0, 1)
    ]
    page = frequencies.report(rows)
    assert "Own vectors change NDCG@10 by +2.0 ± 0.0" in page.finding
    assert "frequencies change it by +1.0 ± 0.0" in page.finding
    assert "| of training documents | 42.0 ± 0.0 | 43.0 ± 0.0 | 44.0 ± 0.0 |" in page.text
    assert "| own vectors above no vectors | +5.0 ± 0.0 | yes |" in page.text


def test_the_summary_lists_what_was_run_and_nothing_else(tmp_path):
    def make(name):
        return Experiment(name, name, f"claim of {name}", 1, lambda setting: [{"x": 1}], lambda rows: Page("seen", ""))

    (tmp_path / "README.md").write_text("# Ours\n\n<!-- findings -->\n<!-- end of findings -->\n\nThe end.\n")
    write_results(make("first"), Setting(Workspace(tmp_path)), tmp_path)
    write_summary([make("first"), make("second")], tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "| [first](first.md) | claim of first | seen |" in page
    assert "second" not in page
    assert page.startswith("# Ours") and page.endswith("The end.\n")


def test_the_help_lists_all_experiments_with_their_claims():
    text = make_parser().format_help()
    for experiment in EXPERIMENTS.values():
        assert experiment.name in text and experiment.claim in text


RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.csv")))
def test_a_page_in_the_documentation_is_what_its_table_gives(name, tmp_path):
    for path in (RESULTS / f"{name}.csv", RESULTS / f"{name}.md"):
        (tmp_path / path.name).write_text(path.read_text())
    experiment = EXPERIMENTS[name]
    data = " --data DATA" if experiment.needs == "data" else ""
    write_page(experiment, tmp_path, f"python -m experiments {name}{data}")
    assert (tmp_path / f"{name}.md").read_text() == (RESULTS / f"{name}.md").read_text()


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.md")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_the_links_of_a_page_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    assert [link for link in links if not link.startswith("http") and not (path.parent / link).exists()] == []
