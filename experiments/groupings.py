"""groupings: do contextual batches gain more than batches of one domain do?"""

from statistics import fmean

from .main_table import EVALUATION, base_run, short_run, short_setting
from .runner.comparison import Check, check_table
from .runner.experiment import Experiment, Page, Setting
from .runner.sweep import sweep
from .runner.table import Row, markdown_table, pivot, seed_gains, seed_means, select
from .runner.training import read_training


GROUPINGS = (("random", False), ("domain", False), ("domain", True), ("cluster", True))


def run(setting: Setting) -> list[Row]:
    """T1's biencoder from batches of each kind in short runs, and at T1's length from batches that T1 lacks."""
    rows = []
    # In turn, because some quick runs of both are the same run.
    for make, kinds in ((short_run, GROUPINGS), (base_run, [("domain", True)])):
        runs = {
            make(architecture="biencoder", batches=batches, filters=filters): {
                "batches": batches,
                "filter": "on" if filters else "off",
                "steps": make().steps,
            }
            for batches, filters in kinds
        }
        rows += sweep(setting, runs, EVALUATION, ways=("plain",))
    facts = {name: read_training(setting.workspace.runs / name) for name in {row["run"] for row in rows}}
    return [{**row, "hardness": facts[row["run"]]["hardness"]} for row in rows]


def report(rows: list[Row]) -> Page:
    """A line for each kind, and the gains from one to the next."""
    header, lines = pivot(rows, _name, "set")
    for line in lines:
        line.append(f"{fmean(row['hardness'] for row in rows if _name(row) == line[0]):.2f}")
    means = {
        (batches, filters): seed_means(
            select(rows, batches=batches, filter="on" if filters else "off", steps=short_run().steps)
        )
        for batches, filters in GROUPINGS
    }

    checks = [
        Check(
            "one domain above random, without the filter", seed_gains(means["random", False], means["domain", False])
        ),
        Check("the filter above none, one domain", seed_gains(means["domain", False], means["domain", True])),
        Check("clusters above one domain, with the filter", seed_gains(means["domain", True], means["cluster", True])),
        Check(
            "clusters with the filter above random without", seed_gains(means["random", False], means["cluster", True])
        ),
    ]
    finding = "Points of NDCG@10: " + "; ".join(f"{check.expectation} {check}" for check in checks)
    text = f"""## Setting

The biencoder of T1 on T1's pairs and sets, {short_setting()}. The last line has
T1's steps and text length, to compare with the biencoders of [T1](T1.md). *cluster*: T1's contextual batches.
*random*: T1's random batches. *domain*: random pairs of one of the ten domains. *hardness*: the mean TF-IDF cosine of
the queries with the other pairs' documents, including documents that the filter removes. ± is the standard deviation
over seeds of the mean over sets.

{markdown_table(["batches", *header, "hardness"], lines)}
## Against the paper

The paper makes clusters within each domain, and does not report batches of one domain without clusters.

{check_table(checks)}"""
    return Page(f"{finding}.", text)


def _name(row: Row) -> str:
    return f"{row['batches']}, filter {row['filter']}, {row['steps']} steps"


EXPERIMENT = Experiment(
    name="groupings",
    title="Random batches, batches of a domain, batches of a cluster",
    claim="Contextual batches improve NDCG@10 more than batches of one domain do.",
    minutes=15,
    run=run,
    report=report,
)
