"""Every experiment runs from its data to its page, as `--quick` does, on data of the smallest size."""

import gzip
import json

import pytest

from cde_hf.data import RetrievalSet, save_retrieval_set
from experiments import contexts, drift, main_table, own_pairs
from experiments.__main__ import EXPERIMENTS
from experiments.runner.experiment import Setting, write_page, write_results
from experiments.runner.table import read_table
from experiments.runner.workspace import Workspace


# The models of one experiment are often those of another, so all share a folder of runs and stay on one process.
pytestmark = pytest.mark.xdist_group("quick_runs")

# The others train or score more models, or read the docstrings of all installed libraries.
FAST = [
    "F5",
    "F12",
    "F15",
    "F13",
    "P1",
    "P2",
    "F9",
    "drift",
    "frequency-pooling",
    "frequency-scale",
    "corpus-part",
    "proxy",
]
PLACES = [f"place{number}" for number in range(64)]
PARTS, PACKAGES = ("far", "near"), (own_pairs.TESTED_PACKAGES[0], "numpy")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, module_pairs):
    """Training domains and retrieval sets under the names that the experiments ask for."""
    folder = tmp_path_factory.mktemp("quick")
    cases = own_pairs.CASES.values()
    for domain in (*main_table.DOMAINS[:2], "intents", *(case.pairs for case in cases)):
        module_pairs(folder / "data" / "train" / f"{domain}.jsonl.gz")
    tests = {case.test for case in cases if case.test is not None}
    for name in {*main_table.SETS[:3], *contexts.FORUMS[:3], *drift.SETS[:2], *tests}:
        corpus = {
            place: f"The road to {place} begins at the {name} gate. It ends at the old mill of {place}."
            for place in PLACES
        }
        queries = {place: f"How do I get to {place}?" for place in PLACES}
        qrels = {place: {place: 1} for place in PLACES}
        save_retrieval_set(RetrievalSet(name, corpus, queries, qrels), folder / "data" / "eval" / name)
    return Workspace(folder / "runs", folder / "data")


@pytest.fixture(scope="module")
def module_pairs():
    """Function that writes a file of pairs, labelled as the intents are, or by package."""

    def write(path):
        rows = [
            {
                "query": f"where is {place} {path.name[:4]}{number}",
                "document": f"{place} lies beside the {path.name[:4]}{number} near {PLACES[number - 1]}",
                "subdomain": PACKAGES[number % 2] if "code" in path.name else f"{PARTS[number % 2]}/{number // 2 % 5}",
            }
            for number, place in enumerate(PLACES)
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    return write


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in EXPERIMENTS],
)
def test_an_experiment_runs_from_its_data_to_its_page(name, workspace, tmp_path):
    experiment = EXPERIMENTS[name]
    write_results(experiment, Setting(workspace, num_seeds=1, is_quick=True), tmp_path)
    assert read_table(tmp_path / f"{name}.csv")
    page = write_page(experiment, tmp_path, f"python -m experiments {name}")
    assert page.finding in (tmp_path / f"{name}.md").read_text()
