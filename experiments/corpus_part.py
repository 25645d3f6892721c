"""
corpus-part: what a frozen encoder gains from a corpus, by context-frequency pooling and the corpus part.

1. The token vectors of a retrieval set are computed once and pooled in every way; term vectors are fitted to its own
   documents, to a sample of them, and to other sets.
2. Settings are chosen on retrieval sets made of training pairs.
3. The chosen setting is scored on whole evaluation sets, beside BM25, whitening and hybrid search.
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from matplotlib.figure import Figure
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from cde_hf import BM25, RetrievalSet, load_pairs, load_retrieval_set, model_path, sample_documents
from cde_hf.data import retrieval_set_from_pairs
from cde_hf.evaluation import Ranking, compare_scores
from cde_hf.evaluation.bm25 import Postings, lexical_blocks, query_terms
from cde_hf.evaluation.hybrid import HYBRID_WEIGHT, lexical_scale
from cde_hf.evaluation.metrics import RANKING_DEPTH, score_ranking
from cde_hf.evaluation.whitening import fit_whitening
from cde_hf.modeling.context import CorpusTerms
from cde_hf.modeling.corpus_part import NUM_CALIBRATION_DOCUMENTS, WEIGHT_PER_SPREAD
from cde_hf.modeling.term_vectors import count_documents, embed_terms, fit_terms, term_features

from .frequency_pooling import Results, Scores, TokenVectors, count_tokens, mean_scores, percent, source, weigh
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_json
from .runner.sets import sample_set
from .runner.table import Row, markdown_table, select


MAX_LENGTH = 256
DIMENSIONS = 256
SIZES = (64, 256, 1024)
SEEDS = (0, 1, 2)
NUM_FOREIGN_SETS = 3

# Chosen on training domains: the weight of the part and of BM25, in standard deviations of the cosines, are the
# defaults of `CorpusPart` and of hybrid search.
WEIGHTS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
TRAINING_DIMENSIONS = (64, 128, 256, 512)
TRAINING_DOCUMENTS, TRAINING_QUERIES = 1000, 250
HYBRID_WEIGHTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)
HYBRID_TRAINING_DOCUMENTS, HYBRID_TRAINING_LENGTH = 500, 128

MINILM, GTE, NOMIC = "all-MiniLM-L6-v2", "gte-small", "nomic-embed-text-v1.5"
_SOFTWARE = ("acl_anthology", "dc_law", "debian_packages", "mdn_web_docs", "medquad", "python_code")
TRAINING_DOMAINS = {
    MINILM: (
        *_SOFTWARE,
        *("ag_news", "covid_health_qa", "dictionary", "movies", "recipes", "reddit_gaming", "reddit_tech_support"),
        *("reuters_news", "review_qa", "wikipedia_intro"),
    ),
    GTE: (*_SOFTWARE, "reddit_tech_support", "reuters_news"),
    NOMIC: (),
}
# Slower encoders take fewer sets: gte-small those of at most 1,400 documents, nomic six small ones.
GTE_MAX_DOCUMENTS = 1400
NOMIC_SETS = ("adi", "med", "nq-utd", "redditforum-gis", "redditforum-grammar", "se-ai")

PLAIN, WHITENED, WORDS, HYBRID = "plain", "whitened", "BM25", "hybrid"
POOLED, PART_ALONE = "frequency pooling", "corpus part alone"
OWN, FOREIGN, HYBRID_OWN = "contextualized, own", "contextualized, foreign", "contextualized hybrid"
WAYS = (PLAIN, WHITENED, POOLED, PART_ALONE, FOREIGN, OWN)


def own_of(size: int) -> str:
    return f"{OWN}, {size} documents"


@dataclass(frozen=True)
class Side:
    """Texts of a retrieval set: their token vectors, and the counts of their terms."""

    vectors: TokenVectors
    term_ids: torch.Tensor
    term_counts: torch.Tensor

    def part(self, terms: CorpusTerms) -> np.ndarray:
        blocks = zip(self.term_ids.split(1024), self.term_counts.split(1024), strict=True)
        return torch.cat([embed_terms(terms, *block) for block in blocks]).numpy()


class EncodedSet:
    """A retrieval set, encoded once and scored in many ways."""

    def __init__(self, model: SentenceTransformer, retrieval_set: RetrievalSet):
        self.model, self.retrieval_set = model, retrieval_set
        self.documents = self._encode(list(retrieval_set.corpus.values()), "document")
        self.queries = self._encode(list(retrieval_set.queries.values()), "query")
        self.lexical = lexical_scores(model, retrieval_set)

    def _encode(self, texts: Sequence[str], kind: str) -> Side:
        vectors = TokenVectors(
            self.model, texts, f"{self.retrieval_set.name} {kind}", prompt=self.model.prompts.get(kind) or None
        )
        counted = term_features(self.model.tokenizer, texts, prompt=None, task=None)
        return Side(vectors, counted["term_ids"], counted["term_counts"])

    def dense(self, retrieval_set: RetrievalSet | None, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of queries and documents, pooled by the frequencies of a set's documents, or by the mean."""
        num_tokens = len(self.model.tokenizer.get_vocab())
        weights = torch.ones(num_tokens)
        if retrieval_set is not None:
            weights = weigh(count_tokens(self.model, retrieval_set, size, seed)[0])
        return self.queries.vectors.pool(weights), self.documents.vectors.pool(weights)

    def with_part(
        self, queries_and_documents: tuple[np.ndarray, np.ndarray], terms: CorpusTerms
    ) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of queries and documents with their corpus part."""
        weight = WEIGHT_PER_SPREAD * spread(queries_and_documents[1])
        return tuple(
            np.concatenate([dense, weight**0.5 * side.part(terms)], axis=1) / (1 + weight) ** 0.5
            for dense, side in zip(queries_and_documents, (self.queries, self.documents), strict=True)
        )

    def search(self, vectors: tuple[np.ndarray, np.ndarray], hybrid_weight: float = 0.0) -> Scores:
        """NDCG@10 of each query by vectors of queries and documents, and by BM25 with a weight."""
        queries, documents = vectors
        return self.score(queries @ documents.T + hybrid_weight * spread(documents) * self.lexical)

    def score(self, scores: np.ndarray) -> Scores:
        """NDCG@10 of each query from the scores of shape `(num_queries, num_documents)`."""
        best, indices = torch.from_numpy(scores).topk(min(RANKING_DEPTH, scores.shape[1]))
        return score_ranking(Ranking(indices.numpy(), best.numpy()), self.retrieval_set)["ndcg@10"]


def lexical_scores(model: SentenceTransformer, retrieval_set: RetrievalSet) -> np.ndarray:
    """BM25 on whole texts over the bound of the query, of shape `(num_queries, num_documents)`."""
    counts = count_documents(model.tokenizer, list(retrieval_set.corpus.values()))
    terms = query_terms(model.tokenizer, list(retrieval_set.queries.values()))
    statistics = Postings.of(counts).statistics
    scores = np.concatenate([block for block, _ in lexical_blocks(terms, counts, statistics)], axis=1)
    return scores * np.array([[lexical_scale(statistics, each, 1.0)] for each in terms], dtype=np.float32)


def spread(vectors: np.ndarray, seed: int = 0) -> float:
    """Standard deviation of the cosines between documents."""
    rows = sample_documents(range(len(vectors)), NUM_CALIBRATION_DOCUMENTS, seed=seed)
    cosines = vectors[rows] @ vectors[rows].T
    return float(cosines[np.triu_indices(len(rows), 1)].std())


def score_all_ways(
    encoded: EncodedSet, foreign_sets: Sequence[RetrievalSet], fit: Callable[[RetrievalSet, int, int], CorpusTerms]
) -> Iterator[tuple[str, Scores]]:
    """Every way to score a set, and the scores of its queries."""
    own = encoded.retrieval_set
    texts = list(own.queries.values()), list(own.corpus.values())
    yield WORDS, score_ranking(BM25(encoded.model.tokenizer).rank(*texts, depth=RANKING_DEPTH), own)["ndcg@10"]
    whole = len(own.corpus)
    plain = encoded.dense(None, 0, 0)
    yield PLAIN, encoded.search(plain)
    yield PART_ALONE, encoded.search(encoded.with_part(plain, fit(own, whole, 0)))
    yield HYBRID, encoded.search(plain, HYBRID_WEIGHT)
    whitening = fit_whitening(plain[1][sample_documents(range(whole), 512, seed=0)])
    yield WHITENED, encoded.score(whitening(plain[0]) @ whitening(plain[1]).T)
    pooled = encoded.dense(own, whole, 0)
    yield POOLED, encoded.search(pooled)
    contextualized = [encoded.with_part(pooled, fit(own, whole, seed)) for seed in SEEDS]
    yield OWN, mean_scores([encoded.search(vectors) for vectors in contextualized])
    yield HYBRID_OWN, mean_scores([encoded.search(vectors, HYBRID_WEIGHT) for vectors in contextualized])
    scores = []
    for other in foreign_sets:
        size = len(other.corpus)
        scores.append(encoded.search(encoded.with_part(encoded.dense(other, size, 0), fit(other, size, 0))))
    yield FOREIGN, mean_scores(scores)
    for size in SIZES:
        if size < whole:
            samples = [encoded.with_part(encoded.dense(own, size, seed), fit(own, size, seed)) for seed in SEEDS]
            yield own_of(size), mean_scores([encoded.search(vectors) for vectors in samples])


def own_scores(encoded: EncodedSet, fit: Callable[[RetrievalSet, int, int], CorpusTerms]) -> Scores:
    """Scores of the contextualized encoder on its own corpus, fitted once."""
    own = encoded.retrieval_set
    whole = len(own.corpus)
    return encoded.search(encoded.with_part(encoded.dense(own, whole, 0), fit(own, whole, 0)))


def make_fit(model: SentenceTransformer) -> Callable[[RetrievalSet, int, int], CorpusTerms]:
    """A function that fits term vectors to a sample of a set's documents, and keeps those of whole sets."""

    def fit(retrieval_set: RetrievalSet, size: int, seed: int) -> CorpusTerms:
        texts = [text for text in retrieval_set.corpus.values() if text.strip()]
        sample = sample_documents(texts, size, seed=seed)
        return fit_terms(model.tokenizer, sample, num_directions=DIMENSIONS - 1, seed=seed)

    fits: dict[str, CorpusTerms] = {}

    def fit_once(retrieval_set: RetrievalSet, size: int, seed: int) -> CorpusTerms:
        if size < len(retrieval_set.corpus) or seed != 0:
            return fit(retrieval_set, size, seed)
        if retrieval_set.name not in fits:
            fits[retrieval_set.name] = fit(retrieval_set, size, seed)
        return fits[retrieval_set.name]

    return fit_once


def score_settings(model: SentenceTransformer, retrieval_set: RetrievalSet) -> Iterator[tuple[str, Scores]]:
    """Settings on a training domain."""
    encoded = EncodedSet(model, retrieval_set)
    whole = len(retrieval_set.corpus)
    plain, pooled = encoded.dense(None, 0, 0), encoded.dense(retrieval_set, whole, 0)
    yield PLAIN, encoded.score(plain[0] @ plain[1].T)
    cosines, width = pooled[0] @ pooled[1].T, spread(pooled[1])
    yield POOLED, encoded.score(cosines)
    for dimensions in TRAINING_DIMENSIONS:
        terms = fit_terms(model.tokenizer, list(retrieval_set.corpus.values()), num_directions=dimensions - 1)
        documents = encoded.documents.part(terms)
        for weight in WEIGHTS:
            part = encoded.queries.part(terms) @ documents.T
            yield f"{dimensions} dimensions, weight {weight}", encoded.score(cosines + weight * width * part)
            if dimensions == DIMENSIONS:
                # A count beyond all saturation: every term that a query has weighs its IDF.
                present = (encoded.queries.term_counts > 0) * 1e6
                idf_part = embed_terms(terms, encoded.queries.term_ids, present).numpy() @ documents.T
                yield f"queries by IDF, weight {weight}", encoded.score(cosines + weight * width * idf_part)


def score_hybrid_settings(model: SentenceTransformer, retrieval_set: RetrievalSet) -> Iterator[tuple[str, Scores]]:
    """Weights of BM25 on a training domain, beside the plain and the contextualized encoder."""
    encoded = EncodedSet(model, retrieval_set)
    whole = len(retrieval_set.corpus)
    plain, pooled = encoded.dense(None, 0, 0), encoded.dense(retrieval_set, whole, 0)
    terms = make_fit(model)(retrieval_set, whole, 0)
    for way, vectors in ((HYBRID, plain), (HYBRID_OWN, encoded.with_part(pooled, terms))):
        for weight in HYBRID_WEIGHTS:
            yield f"{way}, weight {weight}", encoded.search(vectors, weight)


def measure(
    model: SentenceTransformer,
    retrieval_sets: Sequence[RetrievalSet],
    all_sets: Sequence[RetrievalSet],
    folder: Path,
) -> Results:
    """Scores of all ways on some sets, kept in a folder. Foreign documents come from sets of other sources."""
    results: Results = {}
    fit = make_fit(model)
    for retrieval_set in tqdm(retrieval_sets, desc=folder.name):
        path = folder / f"{retrieval_set.name}.json"
        if not path.exists():
            others = [other for other in all_sets if source(other.name) != source(retrieval_set.name)]
            foreign_sets = random.Random(retrieval_set.name).sample(others, min(NUM_FOREIGN_SETS, len(others)))
            write_json(path, dict(score_all_ways(EncodedSet(model, retrieval_set), foreign_sets, fit)))
        for way, scores in json.loads(path.read_text(encoding="utf-8")).items():
            results.setdefault(way, {})[retrieval_set.name] = scores
    return results


def measure_settings(
    model: SentenceTransformer,
    domains: Sequence[str],
    data: Path,
    folder: Path,
    num_documents: int = TRAINING_DOCUMENTS,
    score: Callable[[SentenceTransformer, RetrievalSet], Iterator[tuple[str, Scores]]] = score_settings,
) -> Results:
    """Scores of all settings on training domains, kept in a folder."""
    results: Results = {}
    for domain in tqdm(domains, desc=folder.name):
        path = folder / f"{domain}.json"
        if not path.exists():
            retrieval_set = read_training_domain(data / "train" / f"{domain}.jsonl.gz", domain, num_documents)
            write_json(path, dict(score(model, retrieval_set)))
        for way, scores in json.loads(path.read_text(encoding="utf-8")).items():
            results.setdefault(way, {})[domain] = scores
    return results


def read_training_domain(path: Path, name: str, num_documents: int) -> RetrievalSet:
    """A retrieval set of a sample of a domain's pairs."""
    with tempfile.TemporaryDirectory() as cache_folder:
        pairs = load_pairs(path, domain=name, cache_folder=cache_folder).shuffle(seed=SEEDS[0])
        whole = retrieval_set_from_pairs(name, pairs.select(range(min(num_documents, len(pairs)))))
    queries = dict(list(whole.queries.items())[:TRAINING_QUERIES])
    return RetrievalSet(name, whole.corpus, queries, {query: whole.qrels[query] for query in queries})


def choose_sets(encoder: str, sets: Sequence[RetrievalSet]) -> list[RetrievalSet]:
    """The evaluation sets that an encoder is scored on."""
    if encoder == GTE:
        return [each for each in sets if len(each.corpus) <= GTE_MAX_DOCUMENTS]
    if encoder == NOMIC:
        return [each for each in sets if each.name in NOMIC_SETS]
    return list(sets)


def run(setting: Setting) -> list[Row]:
    """Scores of every encoder: settings on training domains, all ways on evaluation sets, and tests."""
    data = setting.workspace.data_folder
    sets = [load_retrieval_set(path) for path in sorted((data / "eval").iterdir())]
    paths = {MINILM: model_path("minilm")} | {path.name: str(path) for path in setting.workspace.encoders}
    if setting.is_quick:
        sets = [sample_set(each, 8, 24, seed=0) for each in {source(each.name): each for each in sets}.values()][:2]
        paths = {MINILM: paths[MINILM]}
    rows = []
    for encoder, path in paths.items():
        model = SentenceTransformer(path, device="cpu")
        model.max_seq_length = MAX_LENGTH
        folder = setting.workspace.runs / "corpus_part" / encoder
        domains = TRAINING_DOMAINS.get(encoder, ())
        available = [name for name in domains if (data / "train" / f"{name}.jsonl.gz").exists()]
        available = available[:1] if setting.is_quick else available
        parts = {"train": measure_settings(model, available, data, folder / "train")}
        model.max_seq_length = HYBRID_TRAINING_LENGTH
        parts["train, hybrid"] = measure_settings(
            model, available, data, folder / "hybrid", HYBRID_TRAINING_DOCUMENTS, score_hybrid_settings
        )
        model.max_seq_length = MAX_LENGTH
        parts["eval"] = measure(model, choose_sets(encoder, sets), sets, folder / "eval")
        for part, results in parts.items():
            rows += [
                {"encoder": encoder, "part": part, "set": name, "way": way, "ndcg@10": percent(scores), "p": ""}
                for way, by_set in results.items()
                for name, scores in by_set.items()
            ]
        rows += significance_rows(encoder, parts["eval"])
    return rows


def significance_rows(encoder: str, results: Results) -> list[Row]:
    """Points of the contextualized encoder above other ways, with one vector and as a hybrid."""
    tests = [("own above", OWN, way) for way in (PLAIN, FOREIGN, POOLED)]
    tests += [("hybrid above", HYBRID_OWN, way) for way in (HYBRID, OWN)]
    rows = []
    for part, better, way in tests:
        names = [name for name in results.get(better, {}) if name in results[way]]
        for title, group in {**{name: [name] for name in names}, "mean": names}.items():
            if group:
                sides = [[results[each][name] for name in group] for each in (way, better)]
                comparison = compare_scores(*sides)
                row = {"encoder": encoder, "part": part, "set": title, "way": way}
                rows.append({**row, "ndcg@10": 100 * comparison.difference, "p": comparison.p_value})
    return rows


def report(rows: list[Row]) -> Page:
    """Tables and charts, encoder by encoder."""
    encoders = list(dict.fromkeys(row["encoder"] for row in rows))
    findings, sections = [], []
    for encoder in encoders:
        mine = select(rows, encoder=encoder)
        tests = {row["way"]: row for row in select(mine, part="own above", set="mean")}
        num_sets = len({row["set"] for row in select(mine, part="eval")})
        findings.append(
            f"{encoder}: {tests[PLAIN]['ndcg@10']:+.1f} over the plain model, {tests[FOREIGN]['ndcg@10']:+.1f} over "
            f"other corpora ({num_sets} sets)"
        )
        tables = [sets_table(mine), means_table(mine), worse_sentence(mine), hybrid_table(mine)]
        sections.append("\n".join([f"## {encoder}\n", *tables]))
    all_sections = "\n".join(sections)
    settings = "\n".join(f"{encoder}:\n\n{settings_table(select(rows, encoder=encoder))}" for encoder in encoders)
    hybrid_settings = "\n".join(hybrid_settings_table(select(rows, encoder=encoder)) for encoder in encoders)
    text = f"""## Setting

Frozen encoders, texts of {MAX_LENGTH} tokens, whole sets. BM25, the terms of the corpus part and hybrid search read
whole texts. All encoders but MiniLM are given by `--encoders`.

- *own* is fitted to all documents of the set, the mean of {len(SEEDS)} seeds; *foreign* to all documents of another
  set, the mean of {NUM_FOREIGN_SETS} sets from other sources. {DIMENSIONS} dimensions, weight {WEIGHT_PER_SPREAD}
  standard deviations.
- *hybrid* adds BM25, divided by the highest score that a document could have for the query, with weight
  {HYBRID_WEIGHT:g} standard deviations of the cosines; *contextualized hybrid* adds it to the contextualized encoder.
- The terms of BM25 are word pieces, without stop words.

{all_sections}
## Settings on training domains

Points of NDCG@10 above frequency pooling, mean over domains of {TRAINING_DOCUMENTS:,} documents. These numbers chose
the weights. The third column weighs the terms of a query by their inverse document frequency alone; it differs so
little that queries and documents have one form.

{settings}
## Weights of BM25 on training domains

Mean over domains of {HYBRID_TRAINING_DOCUMENTS} documents, texts of {HYBRID_TRAINING_LENGTH} tokens.

{hybrid_settings}"""
    figures = {"gains": gains_figure(select(rows, encoder=encoders[0])), "sizes": sizes_figure(rows, encoders)}
    return Page(f"NDCG@10 of contextualized encoders. {'; '.join(findings)}.", text, figures)


def means_of(rows: Sequence[Row], part: str = "eval") -> dict[str, dict[str, float]]:
    """The scores by way and by set."""
    means: dict[str, dict[str, float]] = {}
    for row in select(rows, part=part):
        means.setdefault(row["way"], {})[row["set"]] = row["ndcg@10"]
    return means


def sets_table(rows: Sequence[Row]) -> str:
    means = means_of(rows)
    lines = []
    for name in [*means[PLAIN], "mean"]:
        cells = [means[way][name] if name != "mean" else fmean(means[way].values()) for way in WAYS]
        (test,) = select(rows, part="own above", set=name, way=PLAIN)
        lines.append([name, *(f"{cell:.1f}" for cell in cells), f"{test['ndcg@10']:+.1f}", f"{test['p']:.4f}"])
    return markdown_table(["set", *WAYS, "own - plain", "p"], lines)


def means_table(rows: Sequence[Row]) -> str:
    """What more documents are worth, on the sets that have as many."""
    means = means_of(rows)
    lines = []
    for size in SIZES:
        names = list(means.get(own_of(size), {}))
        if names:
            cells = [fmean(means[way][name] for name in names) for way in (PLAIN, POOLED, own_of(size), OWN)]
            lines.append([f"{size:,}", str(len(names)), *(f"{cell:.1f}" for cell in cells)])
    return markdown_table(["fitted on", "sets", PLAIN, POOLED, "contextualized", "the same on all documents"], lines)


def worse_sentence(rows: Sequence[Row]) -> str:
    """Which sets are significantly worse than the plain model, by Holm's procedure."""
    tests = [row for row in select(rows, part="own above", way=PLAIN) if row["set"] != "mean"]
    tests.sort(key=lambda row: row["p"])
    rejected = []
    for rank, row in enumerate(tests):
        if row["p"] * (len(tests) - rank) >= 0.05:
            break
        rejected.append(row)
    better, worse = ([row["set"] for row in rejected if sign * row["ndcg@10"] > 0] for sign in (1, -1))
    named = f": {', '.join(worse)}" if worse else ""
    return f"Significantly better than plain (Holm, p < 0.05) on {len(better)} sets, worse on {len(worse)}{named}.\n"


def settings_table(rows: Sequence[Row]) -> str:
    means = means_of(rows, "train")
    if not means:
        return "Not measured.\n"

    def gain(way: str, base: str = POOLED) -> str:
        return f"{fmean(means[way].values()) - fmean(means[base].values()):+.2f}"

    dimensions = [size for size in TRAINING_DIMENSIONS if size != DIMENSIONS]
    lines = [
        [
            str(weight),
            gain(f"{DIMENSIONS} dimensions, weight {weight}"),
            gain(f"queries by IDF, weight {weight}"),
            *(gain(f"{size} dimensions, weight {weight}") for size in dimensions),
        ]
        for weight in WEIGHTS
    ]
    header = ["weight", f"{DIMENSIONS} dimensions", "queries by IDF", *(f"{size}" for size in dimensions)]
    domains = len(next(iter(means.values())))
    title = f"{domains} domains; plain {fmean(means[PLAIN].values()):.1f}, frequency pooling {gain(POOLED, PLAIN)}."
    return f"{title}\n\n{markdown_table(header, lines)}"


def hybrid_settings_table(rows: Sequence[Row]) -> str:
    means = means_of(rows, "train, hybrid")
    if not means:
        return ""
    ways = {"plain": HYBRID, "contextualized": HYBRID_OWN}
    lines = [
        [title, *(f"{fmean(means[f'{way}, weight {weight}'].values()):.2f}" for weight in HYBRID_WEIGHTS)]
        for title, way in ways.items()
    ]
    title = f"{rows[0]['encoder']}, {len(next(iter(means.values())))} domains"
    return markdown_table([title, *map(str, HYBRID_WEIGHTS)], lines)


def hybrid_table(rows: Sequence[Row]) -> str:
    """Hybrid search on the sets where it was measured, and what the contextualized encoder adds to it."""
    means = means_of(rows)
    names = list(means.get(HYBRID_OWN, {}))
    if not names:
        return ""
    ways = (WORDS, PLAIN, OWN, HYBRID, HYBRID_OWN)
    lines = []
    for name in [*names, "mean"]:
        cells = [means[way][name] if name != "mean" else fmean(means[way][each] for each in names) for way in ways]
        tests = [select(rows, part="hybrid above", set=name, way=way)[0] for way in (HYBRID, OWN)]
        shown = [cell for test in tests for cell in (f"{test['ndcg@10']:+.1f}", f"{test['p']:.4f}")]
        lines.append([name, *(f"{cell:.1f}" for cell in cells), *shown])
    return markdown_table(["set", *ways, "above hybrid", "p", "above own", "p"], lines)


def gains_figure(rows: Sequence[Row]) -> Figure:
    """Points above the plain encoder on each set."""
    means = means_of(rows)
    names = sorted(means[PLAIN], key=lambda name: means[OWN][name] - means[PLAIN][name])
    figure = Figure(figsize=(7, 0.28 * len(names) + 1))
    axes = figure.subplots()
    for offset, way in ((0.2, OWN), (-0.2, POOLED)):
        gains = [means[way][name] - means[PLAIN][name] for name in names]
        axes.barh([index + offset for index in range(len(names))], gains, height=0.4, label=way)
    axes.set_yticks(range(len(names)), names)
    axes.axvline(0, color="gray", linewidth=0.8)
    axes.set_xlabel("points of NDCG@10 above the plain encoder")
    axes.legend(loc="lower right")
    return figure


def sizes_figure(rows: Sequence[Row], encoders: Sequence[str]) -> Figure:
    """Points above the plain encoder by the number of documents that the corpus part is fitted on."""
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for encoder in encoders:
        means = means_of(select(rows, encoder=encoder))
        sizes = [size for size in SIZES if own_of(size) in means]
        # The same sets for every size, so that the points of a line can be compared.
        names = set.intersection(*(set(means[own_of(size)]) for size in sizes[:2])) if sizes else set()
        ways = [own_of(size) for size in sizes[:2]] + [OWN]
        gains = [fmean(means[way][name] - means[PLAIN][name] for name in names) for way in ways] if names else []
        if gains:
            axes.plot([*map(str, sizes[:2]), "all"], gains, marker="o", label=f"{encoder} ({len(names)} sets)")
    axes.set_xlabel("documents that the corpus part is fitted on")
    axes.set_ylabel("points of NDCG@10 above the plain encoder")
    if axes.lines:
        axes.legend()
    return figure


EXPERIMENT = Experiment(
    name="corpus-part",
    title="What a frozen encoder gains from a corpus",
    claim="A corpus part, fitted without labels and without training, improves any encoder by 1.5 to 3 points.",
    minutes=150,
    run=run,
    report=report,
)
