"""T1: the paper's main table of batches by architecture, with prefix attention and controls."""

from itertools import product

from .runner.comparison import Check, check_table, context_table, gains, plot_means, score_table
from .runner.config import RunConfig
from .runner.experiment import Experiment, Page, Setting
from .runner.scoring import FREQUENCY_SCALE
from .runner.sets import EvaluationConfig
from .runner.sweep import sweep, untrained_rows
from .runner.table import Row


# Of many kinds. Left out: the documents of `nfcorpus_train` and `regulatory_obliqa_dev` are those of evaluation sets,
# and all of Reddit shares its source, though not its forums, with the forums that are tested on.
DOMAINS = (
    "acl_anthology",
    "dc_law",
    "debian_packages",
    "mdn_web_docs",
    "medquad",
    "movies",
    "python_code",
    "recipes",
    "reuters_news",
    "review_qa",
)
# In such an order that the next one, whose documents are the foreign context, is of another kind.
SETS = (
    "cranfield",
    "redditforum-gis",
    "cacm",
    "redditforum-grammar",
    "nq-utd",
    "se-ai",
    "negconstraint",
)
EVALUATION = EvaluationConfig(SETS, max_queries=200, max_documents=500)
BATCHES = {"random": {"batches": "random", "filters": False}, "contextual": {"batches": "cluster"}}
ARCHITECTURES = ("biencoder", "soft_prompt", "joint", "prefix")


def base_run(**fields) -> RunConfig:
    """A run of this table: MiniLM cut to three layers, on ten domains."""
    defaults = {"domains": DOMAINS, "pairs_per_domain": 2000, "layers": 3, "steps": 100, "context_source": "domain"}
    return RunConfig(**{**defaults, **fields})


def short_run(**fields) -> RunConfig:
    """A run with half of this table's steps, on shorter texts, for the experiments that vary one factor of it."""
    return base_run(**{"steps": 50, "warmup_steps": 5, "max_length": 32, **fields})


def short_setting() -> str:
    """How such a run differs from T1, for the pages."""
    short, base = short_run(), base_run()
    return f"{short.steps} steps (T1: {base.steps}) on texts of {short.max_length} tokens (T1: {base.max_length})"


def runs() -> dict[RunConfig, Row]:
    """The trained models of one seed."""
    return {
        base_run(architecture=architecture, **fields): {
            "architecture": architecture,
            "pooling": "mean",
            "batches": batches,
        }
        for architecture, (batches, fields) in product(ARCHITECTURES, BATCHES.items())
    }


def run(setting: Setting) -> list[Row]:
    """Trains and scores all models, and scores what needs no training."""
    return sweep(setting, runs(), EVALUATION) + untrained_rows(setting, EVALUATION, base_run())


def report(rows: list[Row]) -> Page:
    """Tables, checks against the paper, and a plot."""
    checks = check_claims(rows)
    num_seeds = len({row["seed"] for row in rows})
    text = f"""## Setting

Models start from the first three layers of MiniLM (*start*) and train for {base_run().steps} steps of
{base_run().batch_size} pairs from ten domains. Random batches have no filter. Contextual batches come from clusters of
TF-IDF vectors and use the false-negative filter. Texts are cut to {EVALUATION.max_length} tokens, sets to
{EVALUATION.max_documents} documents (plus the positive ones) and {EVALUATION.max_queries} queries. A context has
{EVALUATION.context_size} documents: in training a sample of the batch's domain, at test time a sample of the set. ± is
the standard deviation over {num_seeds} seeds of the mean over sets.

*Soft prompts* is the control: it learns one vector for each context document of the other models and never sees a
context. *Frequency-pooled* models have the same weights. At test time they down-weight tokens that occur in many
context documents (`a = {FREQUENCY_SCALE}`).

Training leaves out `nfcorpus_train` and `regulatory_obliqa_dev`, because evaluation sets contain their documents. It
also leaves out all of Reddit, because the test forums come from there.

## NDCG@10

Models with a context use the set's own documents.

{score_table(rows)}
## The context

Mean over the sets. *foreign*: documents of the next set in the list.

{context_table(rows)}
## Against the paper

{check_table(checks)}"""
    holding = sum(check.holds for check in checks)
    names = ("contextual batches", "the contextual architecture", "both")
    shown = ", ".join(f"{name} {check}" for name, check in zip(names, checks[:3], strict=True))
    finding = (
        f"{holding} of {len(checks)} expectations hold. Points of NDCG@10 above a biencoder from random batches: "
        f"{shown}."
    )
    return Page(finding, text, {"ndcg": plot_means(rows)})


def check_claims(rows: list[Row]) -> list[Check]:
    """What the paper and we expect, and what was measured."""
    neither, batches = ("biencoder", "mean", "random"), ("biencoder", "mean", "contextual")
    architecture, both = ("joint", "mean", "random"), ("joint", "mean", "contextual")
    prefix, control = ("prefix", "mean", "contextual"), ("soft_prompt", "mean", "contextual")
    pooled = "prefix", "frequency-pooled", "contextual"
    return [
        Check("contextual batches above random ones, biencoder", gains(rows, neither, batches)),
        Check("contextual architecture above the biencoder, random batches", gains(rows, neither, architecture)),
        Check("both at least 1.0 above the biencoder from random batches", gains(rows, neither, both), 1.0),
        Check("both above contextual batches alone", gains(rows, batches, both)),
        Check("both above the contextual architecture alone", gains(rows, architecture, both)),
        Check("prefix attention at most 0.3 below joint", gains(rows, both, prefix), -0.3),
        Check("prefix attention above soft prompts", gains(rows, control, prefix)),
        Check("prefix: own context above foreign", gains(rows, prefix, prefix, contexts=("foreign", "own"))),
        Check("prefix with frequency pooling above without", gains(rows, prefix, pooled)),
        Check("... own context above foreign", gains(rows, pooled, pooled, contexts=("foreign", "own"))),
        Check("... above the whitened biencoder", gains(rows, ("biencoder", "whitened", "contextual"), pooled)),
        Check(
            "... above the frequency-pooled biencoder",
            gains(rows, ("biencoder", "frequency-pooled", "contextual"), pooled),
        ),
    ]


EXPERIMENT = Experiment(
    name="T1",
    title="Contextual batches and contextual architecture",
    claim="Contextual batches and the contextual architecture both help, and together most (the paper's main table).",
    minutes=180,
    run=run,
    report=report,
)
