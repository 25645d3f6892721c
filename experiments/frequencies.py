"""
frequencies: a context gives a model vectors to attend to and token frequencies to pool by. What does each improve?
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from cde_hf import ContextualModelEmbedder, sample_documents
from cde_hf.modeling import count_token_frequencies

from .main_table import EVALUATION, short_run, short_setting
from .runner.comparison import Check, check_table
from .runner.config import hash_of
from .runner.experiment import Experiment, Page, Setting
from .runner.scoring import (
    FREQUENCY_FIELDS,
    FREQUENCY_SCALE,
    Scores,
    context_means,
    evaluate_once,
    load_sentence_transformer,
    system_fingerprint,
    training_documents,
)
from .runner.sets import EvaluationConfig
from .runner.sweep import quick_evaluation, score_rows, sweep
from .runner.table import Row, markdown_table, seed_gains, seed_means, select, show


# What a text attends to in addition to itself, and where the token frequencies come from.
VECTORS = {
    "none": "none (biencoder)",
    "learned": "learned (soft prompts)",
    "training": "of training documents",
    "own": "of the own documents",
}
FREQUENCIES = {"none": "plain mean", "training": "of training documents", "own": "of the own documents"}


class FrequencyEmbedder(ContextualModelEmbedder):
    """
    A contextual model that takes from a context its token frequencies alone.

    Args:
        model (`SentenceTransformer`):
            A CDE checkpoint in prefix attention that pools by frequency.
        name (`str`):
            Name of its row in a table.
        vector_documents (`Sequence[str]`, *optional*):
            The documents whose vectors it attends to, whatever the context is. Defaults to none.
    """

    def __init__(self, model: SentenceTransformer, name: str, *, vector_documents: Sequence[str] | None = None):
        self.vector_documents = vector_documents
        super().__init__(model, name)

    def set_context(self, documents: Sequence[str] | None) -> None:
        """Counts the tokens of documents, or takes the context away."""
        super().set_context(None if documents is None else self.vector_documents)
        if documents is not None:
            module = self.model[0]
            features = module.preprocess(list(documents), prompt=module.document_prompt)
            frequencies = count_token_frequencies(
                features["input_ids"], features["attention_mask"], module.model.config.vocab_size
            )
            module.context = replace(module.context, token_frequencies=frequencies)


def run(setting: Setting) -> list[Row]:
    """A biencoder, soft prompts and a model in prefix attention, with the plain mean and with own frequencies."""
    evaluation = replace(EVALUATION, contexts=("own", "training"), training_domains=short_run().domains)
    runs = {
        short_run(architecture=architecture): {"architecture": architecture, "pooling": "mean"}
        for architecture in ("biencoder", "soft_prompt", "prefix")
    }
    swept = sweep(setting, runs, evaluation)
    rows = [
        {**_columns(row), **_parts(row), "set": row["set"], "ndcg@10": row["ndcg@10"]}
        for row in swept
        if row["pooling"] != "whitened"
    ]
    if setting.is_quick:
        evaluation = quick_evaluation(evaluation)
    documents = sample_documents(
        training_documents(setting.workspace, evaluation), evaluation.context_size, seed=evaluation.seed
    )
    evaluation = replace(evaluation, contexts=("own",), training_domains=())
    models = {row["run"]: row for row in swept if row["architecture"] != "biencoder"}
    for name, row in tqdm(models.items(), desc="Own frequencies alone", unit="run"):
        vectors = "learned" if row["architecture"] == "soft_prompt" else "training"
        shown = documents if vectors == "training" else None
        scores = _score(setting, name, evaluation, shown)
        rows += [
            {**_columns(row), "vectors": vectors, "frequencies": "own", "set": each["set"], "ndcg@10": each["ndcg@10"]}
            for each in score_rows(scores, {})
        ]
    return rows


def _columns(row: Row) -> Row:
    return {"run": row["run"], "seed": row["seed"]}


def _parts(row: Row) -> Row:
    """Where vectors and frequencies of a row come from, if both come from the same documents."""
    vectors = {"biencoder": "none", "soft_prompt": "learned"}.get(row["architecture"], row["context"])
    return {"vectors": vectors, "frequencies": row["context"] if row["pooling"] == "frequency-pooled" else "none"}


def _score(
    setting: Setting, run_name: str, config: EvaluationConfig, vector_documents: Sequence[str] | None
) -> Scores:
    """Scores of a run with the frequencies of the own context and the vectors of other documents, or of none."""
    folder = setting.workspace.runs / run_name
    fields = {**FREQUENCY_FIELDS, "vector_documents": vector_documents}
    make_system = partial(_load, folder, config.max_length, vector_documents)
    name = f"frequencies-{hash_of([system_fingerprint(folder, 'contextual'), fields])}"
    return context_means(evaluate_once(setting.workspace, make_system, config, name))


def _load(folder: Path, max_length: int, vector_documents: Sequence[str] | None) -> FrequencyEmbedder:
    model = load_sentence_transformer(folder, max_length, **FREQUENCY_FIELDS)
    return FrequencyEmbedder(model, "model", vector_documents=vector_documents)


def report(rows: list[Row]) -> Page:
    """A table of vectors by frequencies, and what each is worth."""
    means = {
        (vectors, frequencies): seed_means(select(rows, vectors=vectors, frequencies=frequencies))
        for vectors in VECTORS
        for frequencies in FREQUENCIES
    }
    lines = [
        [title, *(show(found.values()) if (found := means[vectors, each]) else "" for each in FREQUENCIES)]
        for vectors, title in VECTORS.items()
    ]

    vectors = Check("own vectors above training vectors", seed_gains(means["training", "own"], means["own", "own"]))
    frequencies = Check(
        "own frequencies above training frequencies",
        seed_gains(means["training", "training"], means["training", "own"]),
    )
    checks = [
        vectors,
        Check("own vectors above learned vectors", seed_gains(means["learned", "own"], means["own", "own"])),
        Check("own vectors above no vectors", seed_gains(means["none", "own"], means["own", "own"])),
        frequencies,
        Check(
            "own frequencies above the plain mean, learned vectors",
            seed_gains(means["learned", "none"], means["learned", "own"]),
        ),
        Check(
            "own frequencies above the plain mean, own vectors", seed_gains(means["own", "none"], means["own", "own"])
        ),
    ]
    finding = (
        f"Own vectors change NDCG@10 by {vectors} over training vectors when both pool by own frequencies. Own "
        f"frequencies change it by {frequencies} over training frequencies when both attend to training vectors."
    )
    text = f"""## Setting

The biencoder, the soft prompts and the model in prefix attention of T1, from contextual batches,
{short_setting()}, on T1's sets. All models train with the plain mean. Frequency
pooling (`a = {FREQUENCY_SCALE}`) is switched on at test time. Lines say what texts attend to, columns say which
documents the token frequencies come from. Empty cells were not measured. The last two lines are one model with
different documents; the first two are models of their own. Training documents are the same
{EVALUATION.context_size} on every set. ± is the standard deviation over seeds of the mean over sets.

{markdown_table(["vectors, frequencies", *FREQUENCIES.values()], lines)}
## What was expected

The paper's models use the vectors alone, and random documents lower their scores. In the first three lines both sides
use the frequencies of the own documents. In the fourth, both use the vectors of training documents.

{check_table(checks)}"""
    return Page(finding, text)


EXPERIMENT = Experiment(
    name="frequencies",
    title="Vectors and token frequencies of the context",
    claim="Both the vectors and the token frequencies of the own context improve retrieval.",
    minutes=20,
    run=run,
    report=report,
)
