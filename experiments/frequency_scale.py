"""
frequency-scale: the scale of context-frequency pooling, on clean corpora and on corpora with boilerplate.

1. Retrieval sets are made of training pairs. Boilerplate is the same dozen random words in every text of a corpus, as
   navigation, signatures and log prefixes are.
2. The token vectors of each text are computed once and pooled with every scale, with the corpus part and without.
3. The page shows every scale beside 0.2, the scale that was chosen on clean corpora alone.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from cde_hf import RetrievalSet, model_path
from cde_hf.evaluation import compare_scores
from cde_hf.modeling.corpus_part import WEIGHT_PER_SPREAD

from .corpus_part import MINILM, TRAINING_DOMAINS, EncodedSet, make_fit, spread
from .frequency_pooling import Scores, count_tokens, percent, read_training_domains, weigh
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_json
from .runner.sets import FIRST_WORDS, NUM_WORDS, add_boilerplate, boilerplate_words, sample_set
from .runner.table import Row, markdown_table, select


MAX_LENGTH = 128
REFERENCE = "a = 0.2"
POOLINGS: dict[str, float | None] = {
    "plain mean": None,
    **{f"a = {scale}": scale for scale in (0.5, 0.2, 0.1, 0.05, 0.02)},
}
CLEAN, NOISY, MIXED = "clean", "boilerplate", "boilerplate in documents only"
WITH, WITHOUT = "with", "without"  # the corpus part

ScoredWay = tuple[str, str, str, Scores]  # corpus, corpus part, pooling, and the score of each query


def score_poolings(encoded: EncodedSet) -> Iterator[tuple[str, str, Scores]]:
    """Every pooling of a set, by the frequencies of its own documents, with the corpus part and without."""
    own = encoded.retrieval_set
    shares, _ = count_tokens(encoded.model, own, len(own.corpus), 0)
    terms = make_fit(encoded.model)(own, len(own.corpus), 0)
    part = WEIGHT_PER_SPREAD * encoded.queries.part(terms) @ encoded.documents.part(terms).T
    for pooling, scale in POOLINGS.items():
        weights = torch.ones_like(shares) if scale is None else weigh(shares, scale)
        documents = encoded.documents.vectors.pool(weights)
        cosines = encoded.queries.vectors.pool(weights) @ documents.T
        yield WITHOUT, pooling, encoded.score(cosines)
        yield WITH, pooling, encoded.score(cosines + spread(documents) * part)


def score_set(model: SentenceTransformer, retrieval_set: RetrievalSet) -> Iterator[ScoredWay]:
    """Every pooling of a set, clean and with boilerplate."""
    noisy_set = add_boilerplate(retrieval_set, boilerplate_words(model.tokenizer))
    clean, noisy = EncodedSet(model, retrieval_set), EncodedSet(model, noisy_set)
    mixed = copy.copy(noisy)
    mixed.queries = clean.queries
    for corpus, encoded in ((CLEAN, clean), (NOISY, noisy), (MIXED, mixed)):
        for part, pooling, scores in score_poolings(encoded):
            yield corpus, part, pooling, scores


def run(setting: Setting) -> list[Row]:
    """Scores of all poolings on training domains, and tests against the reference."""
    domains = read_training_domains(setting.workspace.data_folder / "train")
    paths = {MINILM: model_path("minilm")} | {path.name: str(path) for path in setting.workspace.encoders}
    if setting.is_quick:
        domains, paths = [sample_set(domains[0], 8, 24, seed=0)], {MINILM: paths[MINILM]}
    rows = []
    for encoder, path in paths.items():
        model = SentenceTransformer(path, device="cpu")
        model.max_seq_length = MAX_LENGTH
        folder = setting.workspace.runs / "frequency_scale" / encoder
        names = TRAINING_DOMAINS.get(encoder, TRAINING_DOMAINS[MINILM])
        chosen = [each for each in domains if each.name in names]
        rows += rows_of(encoder, {each.name: score_once(model, each, folder) for each in tqdm(chosen, desc=encoder)})
    return rows


def score_once(model: SentenceTransformer, retrieval_set: RetrievalSet, folder: Path) -> list[ScoredWay]:
    """The scores of a set, kept in a folder."""
    path = folder / f"{retrieval_set.name}.json"
    if not path.exists():
        write_json(path, list(score_set(model, retrieval_set)))
    return [tuple(way) for way in json.loads(path.read_text(encoding="utf-8"))]


def rows_of(encoder: str, ways: dict[str, list[ScoredWay]]) -> list[Row]:
    """The scores of an encoder on each set, and points of each pooling above the reference on the mean of the sets."""
    by_way: dict[tuple[str, str, str], dict[str, Scores]] = {}
    for name, scored in ways.items():
        for corpus, part, pooling, scores in scored:
            by_way.setdefault((corpus, part, pooling), {})[name] = scores
    rows: list[Row] = []
    for (corpus, part, pooling), by_set in by_way.items():
        row: Row = {"encoder": encoder, "corpus": corpus, "corpus part": part, "pooling": pooling}
        for name, scores in by_set.items():
            rows.append({**row, "set": name, "value": "ndcg@10", "points": percent(scores), "p": ""})
        if pooling != REFERENCE:
            reference = by_way[corpus, part, REFERENCE]
            comparison = compare_scores([reference[name] for name in by_set], list(by_set.values()))
            points = 100 * comparison.difference
            rows.append({**row, "set": "mean", "value": "above 0.2", "points": points, "p": comparison.p_value})
    return rows


def report(rows: list[Row]) -> Page:
    """The means, the differences and the sets, encoder by encoder."""
    encoders = list(dict.fromkeys(row["encoder"] for row in rows))
    findings, sections = [], []
    for encoder in encoders:
        mine = select(rows, encoder=encoder)
        gains = {
            (row["corpus"], row["pooling"]): f"{row['points']:+.2f}"
            for row in select(mine, **{"corpus part": WITH}, value="above 0.2")
        }
        scales = [pooling for pooling in POOLINGS if pooling not in (REFERENCE, "plain mean")]
        per_scale = (f"{each}: {gains[CLEAN, each]} clean, {gains[NOISY, each]} with boilerplate" for each in scales)
        findings.append(f"{encoder}: {'; '.join(per_scale)}")
        sections.append(f"""## {encoder}

NDCG@10, mean over {len({row["set"] for row in select(mine, value="ndcg@10")})} domains:

{means_table(mine)}
Points above {REFERENCE}, and the p-value of a paired randomisation test over the queries:

{differences_table(mine)}
Each domain, with the corpus part:

{sets_table(mine)}""")
    all_sections = "\n".join(sections)
    text = f"""## Setting

Frozen encoders, texts of {MAX_LENGTH} tokens. A domain is a corpus of 500 documents, made of training pairs. Token
frequencies and corpus part come from all of its documents. No evaluation set is used. All encoders but MiniLM are
given by `--encoders`.

- *{NOISY}*: {NUM_WORDS} random words, others for each domain, stand at random places among the first {FIRST_WORDS}
  words of every query and every document. *{MIXED}*: the same, with clean queries.
- *with* and *without* name the corpus part, which `contextualize` adds by default. Its weight is calibrated for each
  pooling.

{all_sections}"""
    return Page(f"Points of NDCG@10 above {REFERENCE}, with the corpus part. {'. '.join(findings)}.", text)


_COLUMNS = tuple((corpus, part) for corpus in (CLEAN, NOISY, MIXED) for part in (WITHOUT, WITH))


def means_table(rows: Sequence[Row]) -> str:
    lines = []
    for pooling in POOLINGS:
        cells = []
        for corpus, part in _COLUMNS:
            found = select(rows, corpus=corpus, **{"corpus part": part}, pooling=pooling, value="ndcg@10")
            cells.append(f"{fmean(row['points'] for row in found):.2f}")
        lines.append([pooling, *cells])
    return markdown_table(["pooling", *(f"{corpus}, {part}" for corpus, part in _COLUMNS)], lines)


def differences_table(rows: Sequence[Row]) -> str:
    lines = []
    for pooling in POOLINGS:
        if pooling == REFERENCE:
            continue
        cells = []
        for corpus, part in _COLUMNS:
            (row,) = select(rows, corpus=corpus, **{"corpus part": part}, pooling=pooling, value="above 0.2")
            cells.append(f"{row['points']:+.2f} (p = {row['p']:.4f})")
        lines.append([pooling, *cells])
    return markdown_table(["pooling", *(f"{corpus}, {part}" for corpus, part in _COLUMNS)], lines)


def sets_table(rows: Sequence[Row]) -> str:
    columns = [(corpus, pooling) for corpus in (CLEAN, NOISY) for pooling in POOLINGS]
    found = select(rows, **{"corpus part": WITH}, value="ndcg@10")
    points = {(row["set"], row["corpus"], row["pooling"]): row["points"] for row in found}
    names = dict.fromkeys(row["set"] for row in found)
    lines = [[name, *(f"{points[name, corpus, pooling]:.1f}" for corpus, pooling in columns)] for name in names]
    return markdown_table(["domain", *(f"{corpus}, {pooling}" for corpus, pooling in columns)], lines)


EXPERIMENT = Experiment(
    name="frequency-scale",
    title="The scale of context-frequency pooling, with and without boilerplate",
    claim="One scale serves clean corpora and corpora with boilerplate.",
    minutes=30,
    run=run,
    report=report,
)
