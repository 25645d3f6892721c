"""
frequency-pooling: context-frequency pooling of a frozen model. Which settings to use, and what they improve.

1. The token vectors of a retrieval set are computed once and pooled in every way, with the word statistics of its own
   documents and of other sets.
2. Table 1 compares settings on retrieval sets made of training pairs, where they may be chosen.
3. Table 2 shows the chosen setting on the evaluation sets, table 3 its variants on both, table 4 two scales on the
   held-out libraries of the docstring corpus.
"""

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from tqdm.auto import tqdm

from cde_hf import model_path
from cde_hf.data import RetrievalSet, docstring_split, load_pairs, load_retrieval_set, retrieval_set_from_pairs
from cde_hf.evaluation import compare_scores, search_vectors
from cde_hf.evaluation.metrics import RANKING_DEPTH, score_ranking
from cde_hf.evaluation.whitening import fit_whitening
from cde_hf.modeling import sample_documents
from cde_hf.modeling.pooling import pooling_weights

from .divergence import LEFT_OUT_DOMAINS
from .runner.experiment import Experiment, Page, Setting
from .runner.files import write_json
from .runner.sets import sample_set
from .runner.table import Row, markdown_table, select


SCALES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
SIZES = (8, 16, 32, 64, 128, 512)
SCALE, SIZE = 0.2, 64  # the defaults of `contextualize`, chosen by table 1
SEEDS = (0, 1, 2)
NUM_FOREIGN_SETS = 3
PAIRS_PER_DOMAIN = 500
TEXTS_AT_ONCE = 16
TOKENS_AT_ONCE = 100_000

PLAIN, OWN, FOREIGN = "plain mean", "own frequencies", "foreign frequencies"
STEEP_SCALE = 0.1  # what docstrings prefer
STEEP_OWN, STEEP_FOREIGN = f"{OWN}, a = {STEEP_SCALE}", f"{FOREIGN}, a = {STEEP_SCALE}"
SPECIAL = "special tokens weigh 1"

Scores = dict[str, float]  # by query
Results = dict[str, dict[str, Scores]]  # by way of pooling and by set
Means = dict[str, dict[str, float]]  # NDCG@10 in percent, by way of pooling and by set


class TokenVectors:
    """Token vectors of texts, in half precision: computed once, pooled many times."""

    @torch.inference_mode()
    def __init__(self, model: SentenceTransformer, texts: Sequence[str], title: str, *, prompt: str | None = None):
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        ids, rows, vectors = [], [], []
        for start in tqdm(range(0, len(order), TEXTS_AT_ONCE), desc=title, leave=False):
            batch = order[start : start + TEXTS_AT_ONCE]
            features = model[0](model.preprocess([texts[row] for row in batch], prompt=prompt))
            is_token = features["attention_mask"].bool()
            ids.append(features["input_ids"][is_token])
            rows.append(torch.tensor(batch).unsqueeze(1).expand_as(is_token)[is_token])
            vectors.append(features["token_embeddings"][is_token].half())
        self.num_texts = len(texts)
        self.ids, self.rows, self.vectors = torch.cat(ids), torch.cat(rows), torch.cat(vectors)

    def pool(self, token_weights: Tensor, *, repeats_count: bool = True) -> np.ndarray:
        """Weighted means of length 1, from the weight of each token of the vocabulary."""
        weights = token_weights[self.ids]
        if not repeats_count:
            places = self.rows * len(token_weights) + self.ids
            _, index, counts = torch.unique(places, return_inverse=True, return_counts=True)
            weights = weights / counts[index]
        pooled = torch.zeros(self.num_texts, self.vectors.shape[1])
        for start in range(0, len(weights), TOKENS_AT_ONCE):
            part = slice(start, start + TOKENS_AT_ONCE)
            pooled.index_add_(0, self.rows[part], self.vectors[part].float() * weights[part].unsqueeze(1))
        return torch.nn.functional.normalize(pooled).numpy()


class EncodedSet:
    """A retrieval set and its token vectors."""

    def __init__(self, model: SentenceTransformer, retrieval_set: RetrievalSet):
        self.retrieval_set = retrieval_set
        self.queries = TokenVectors(model, list(retrieval_set.queries.values()), f"{retrieval_set.name} queries")
        self.documents = TokenVectors(model, list(retrieval_set.corpus.values()), f"{retrieval_set.name} documents")

    def score(self, query_weights: Tensor, document_weights: Tensor | None = None, **options: bool) -> Scores:
        """NDCG@10 of each query, with the weights for the vocabulary; documents have the same unless given."""
        document_weights = query_weights if document_weights is None else document_weights
        return self.score_vectors(
            self.queries.pool(query_weights, **options), self.documents.pool(document_weights, **options)
        )

    def score_vectors(self, query_vectors: np.ndarray, document_vectors: np.ndarray) -> Scores:
        ranking = search_vectors(query_vectors, [document_vectors], depth=RANKING_DEPTH)
        return score_ranking(ranking, self.retrieval_set)["ndcg@10"]


def count_tokens(
    model: SentenceTransformer, retrieval_set: RetrievalSet, size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Share of `size` documents that contain each token, and its share of all their tokens."""
    sample = sample_documents([text for text in retrieval_set.corpus.values() if text.strip()], size, seed=seed)
    vocab_size = len(model.tokenizer.get_vocab())
    document_counts, token_counts = torch.zeros(vocab_size), torch.zeros(vocab_size)
    for ids in model.tokenizer(sample, truncation=True, max_length=model.max_seq_length)["input_ids"]:
        token_counts += torch.bincount(torch.tensor(ids), minlength=vocab_size)
        document_counts[list(set(ids))] += 1
    return document_counts / len(sample), token_counts / token_counts.sum()


def weigh(shares: Tensor, scale: float = SCALE) -> Tensor:
    """The weights of context-frequency pooling for all tokens of the vocabulary."""
    every_token = torch.arange(len(shares)).unsqueeze(0)
    ones = torch.ones_like(every_token)
    return pooling_weights(every_token, ones, token_frequencies=shares, frequency_scale=scale)[0]


def setting_name(scale: float, size: int) -> str:
    return f"a = {scale}, {size} documents"


def score_all_ways(
    model: SentenceTransformer, encoded: EncodedSet, foreign_sets: Sequence[RetrievalSet]
) -> Iterator[tuple[str, Scores]]:
    """Every way of pooling and the score of every query."""

    def own_shares(size: int, seed: int) -> Tensor:
        return count_tokens(model, encoded.retrieval_set, size, seed)[0]

    shares, token_shares = count_tokens(model, encoded.retrieval_set, SIZE, SEEDS[0])
    foreign_shares = [count_tokens(model, other, SIZE, SEEDS[0])[0] for other in foreign_sets]
    weights, ones = weigh(shares), torch.ones_like(shares)
    yield PLAIN, encoded.score(ones)
    is_special = torch.zeros(len(shares), dtype=torch.bool)
    is_special[model.tokenizer.all_special_ids] = True
    drawn_shares = [own_shares(SIZE, seed) for seed in SEEDS]
    for own_name, foreign_name, scale in ((OWN, FOREIGN, SCALE), (STEEP_OWN, STEEP_FOREIGN, STEEP_SCALE)):
        for name, parts in ((own_name, drawn_shares), (foreign_name, foreign_shares)):
            yield name, mean_scores([encoded.score(weigh(part, scale)) for part in parts])
            special = [encoded.score(weigh(part, scale).masked_fill(is_special, 1.0)) for part in parts]
            yield f"{name}, {SPECIAL}", mean_scores(special)
    for scale in SCALES:
        yield setting_name(scale, SIZE), encoded.score(weigh(shares, scale))
    for size in SIZES:
        if size == SIZE:
            continue
        yield setting_name(SCALE, size), encoded.score(weigh(own_shares(size, SEEDS[0])))

    yield "special tokens marked down, nothing else", encoded.score(weigh(is_special.float()))
    yield "own, special tokens weigh 0", encoded.score(weights.masked_fill(is_special, 0.0))
    yield "own, queries only", encoded.score(weights, ones)
    yield "own, documents only", encoded.score(ones, weights)
    yield "own, weights squared", encoded.score(weights**2)
    yield "own, square root of the weights", encoded.score(weights**0.5)
    yield "own, a repeated token counts once", encoded.score(weights, repeats_count=False)
    yield (
        "own smoothed: half own, half foreign",
        encoded.score(weigh((shares + torch.stack(foreign_shares).mean(dim=0)) / 2)),
    )
    idf = torch.log((SIZE + 1) / (shares * SIZE + 0.5))
    yield "log((N + 1) / (n + 0.5))", encoded.score(idf)
    yield "2 + log((N + 1) / (n + 0.5))", encoded.score(2 + idf)
    for scale in (0.003, 0.01):
        yield f"share of all tokens, a = {scale}", encoded.score(weigh(token_shares, scale))
    for share in (0.5, 0.8):
        yield (
            f"tokens of more than {share:.0%} of the documents left out",
            encoded.score(1.0 * (shares <= share) + 0.01),
        )

    rows = sample_documents(range(encoded.documents.num_texts), 512, seed=SEEDS[0])
    for name, token_weights in (("plain mean", ones), ("own", weights)):
        queries, documents = encoded.queries.pool(token_weights), encoded.documents.pool(token_weights)
        for shrinkage in (0.5, 0.9, 1.0):
            whitening = fit_whitening(documents[rows], shrinkage=shrinkage)
            scores = encoded.score_vectors(whitening(queries), whitening(documents))
            yield f"{name}, whitened (512 documents, shrinkage {shrinkage})", scores


def measure(model: SentenceTransformer, retrieval_sets: Sequence[RetrievalSet], folder: Path) -> Results:
    """Scores of all ways on all sets, kept in a folder. Foreign word statistics come from sets of other sources."""
    results: Results = {}
    for retrieval_set in tqdm(retrieval_sets, desc="Retrieval sets"):
        path = folder / f"{retrieval_set.name}.json"
        if not path.exists():
            others = [other for other in retrieval_sets if source(other.name) != source(retrieval_set.name)]
            foreign_sets = random.Random(retrieval_set.name).sample(others, min(NUM_FOREIGN_SETS, len(others)))
            write_json(path, dict(score_all_ways(model, EncodedSet(model, retrieval_set), foreign_sets)))
        for way, scores in json.loads(path.read_text(encoding="utf-8")).items():
            results.setdefault(way, {})[retrieval_set.name] = scores
    return results


def mean_scores(draws: Sequence[Scores]) -> Scores:
    """Mean over several draws, query by query."""
    return {query: fmean(draw[query] for draw in draws) for query in draws[0]}


def source(name: str) -> str:
    """What a name begins with: parts of one source have it in common (`reddit_gaming`, `redditforum-gis`)."""
    return name.replace("_", "-").split("-")[0]


def run(setting: Setting) -> list[Row]:
    """Scores of all ways on training domains, evaluation sets and libraries, and tests of the chosen setting."""
    folder = setting.workspace.data_folder
    parts = {
        "train": read_training_domains(folder / "train"),
        "eval": [load_retrieval_set(path) for path in sorted((folder / "eval").iterdir())],
    }
    if setting.is_quick:
        # Of different sources, so that each set has a foreign one.
        parts = {
            part: [sample_set(each, 8, 24, seed=0) for each in {source(each.name): each for each in sets}.values()][:2]
            for part, sets in parts.items()
        }
    else:
        parts["libraries"] = docstring_split()[1]
    model = SentenceTransformer(model_path("minilm"), device="cpu")
    rows = []
    for part, sets in parts.items():
        name = f"quick-{part}" if setting.is_quick else part
        results = measure(model, sets, setting.workspace.runs / "frequency_pooling" / name)
        rows += [
            {"part": part, "set": each, "way": way, "ndcg@10": percent(scores), "p": ""}
            for way, by_set in results.items()
            for each, scores in by_set.items()
        ]
        if part == "eval":
            rows += significance_rows(results)
    return rows


def significance_rows(results: Results) -> list[Row]:
    """Points of the own frequencies above the plain mean and above foreign ones, on each set and on all of them."""
    names = list(results[OWN])
    groups = {**{name: [name] for name in names}, "mean": names}
    rows = []
    for title, group in groups.items():
        for way in (PLAIN, FOREIGN):
            sides = [[results[each][name] for name in group] for each in (way, OWN)]
            comparison = compare_scores(*sides)
            points = 100 * comparison.difference
            rows.append({"part": "own above", "set": title, "way": way, "ndcg@10": points, "p": comparison.p_value})
    return rows


def read_training_domains(folder: Path) -> list[RetrievalSet]:
    """Retrieval sets of a sample of each domain's pairs."""
    retrieval_sets = []
    with tempfile.TemporaryDirectory() as cache_folder:
        for path in sorted(folder.glob("*.jsonl.gz")):
            name = path.name.removesuffix(".jsonl.gz")
            if name not in LEFT_OUT_DOMAINS:
                pairs = load_pairs(path, domain=name, cache_folder=cache_folder).shuffle(seed=SEEDS[0])
                pairs = pairs.select(range(min(PAIRS_PER_DOMAIN, len(pairs))))
                retrieval_sets.append(retrieval_set_from_pairs(name, pairs))
    return retrieval_sets


def percent(scores: Scores) -> float:
    return 100 * fmean(scores.values())


def report(rows: list[Row]) -> Page:
    """The four tables."""
    parts = {part: read_means(select(rows, part=part)) for part in ("train", "eval", "libraries")}
    tests = select(rows, part="own above")
    (plain,), (foreign,) = (select(tests, set="mean", way=way) for way in (PLAIN, FOREIGN))
    finding = (
        f"With the statistics of the set's own documents, NDCG@10 is {plain['ndcg@10']:+.1f} above the plain mean "
        f"(p = {plain['p']:.3f}) and {foreign['ndcg@10']:+.1f} above foreign statistics (p = {foreign['p']:.3f}), on "
        f"the mean of {len(parts['eval'][PLAIN])} sets."
    )
    text = f"""## Setting

all-MiniLM-L6-v2, frozen. Token vectors are weighed by `a / (a + p)`, where `p` is the share of the context documents
that contain the token. Chosen: {setting_name(SCALE, SIZE)}. *own* is averaged over {len(SEEDS)} draws, *foreign* over
up to {NUM_FOREIGN_SETS} sets of other sources. `p` in the tables is from a paired randomisation test over the queries.
*by source* counts every source once, however many sets come from it.

## Settings on training domains

Points over the plain mean, which has {fmean(parts["train"][PLAIN].values()):.2f}:

{settings_table(parts["train"])}
## Evaluation sets

{sets_table(parts["eval"], tests)}
## Variants

Points over the plain mean:

{ways_table(parts["train"], parts["eval"])}"""
    if parts["libraries"]:
        text += f"""
## Held-out libraries

{SIZE} documents, a = {SCALE} unless named:

{libraries_table(parts["libraries"])}"""
    return Page(finding, text)


def read_means(rows: Sequence[Row]) -> Means:
    """The scores of one part of the table."""
    means: Means = {}
    for row in rows:
        means.setdefault(row["way"], {})[row["set"]] = row["ndcg@10"]
    return means


def mean_of_sources(values: dict[str, float]) -> float:
    """Mean in which every source counts once, however many sets come from it."""
    parts = [[value for name, value in values.items() if source(name) == kind] for kind in {*map(source, values)}]
    return fmean(fmean(part) for part in parts)


def summary(means: Means, way: str) -> list[str]:
    """Cells of a table: the change by source and by set, on how many sets it is up, and the worst one."""
    change = {name: value - means[PLAIN][name] for name, value in means[way].items()}
    num_better = sum(value > 0 for value in change.values())
    return [
        f"{mean_of_sources(change):+.2f}",
        f"{fmean(change.values()):+.2f}",
        f"{num_better} of {len(change)}",
        f"{min(change.values()):+.2f}",
    ]


def settings_table(train: Means) -> str:
    settings = [(scale, SIZE) for scale in SCALES] + [(SCALE, size) for size in SIZES]
    names = dict.fromkeys(setting_name(*each) for each in settings)
    header = ["setting", "by source", "by domain", "better on", "worst"]
    return markdown_table(header, [[name, *summary(train, name)] for name in names])


def sets_table(evaluation: Means, tests: Sequence[Row]) -> str:
    ways = (PLAIN, OWN, FOREIGN)
    names = list(evaluation[PLAIN])
    lines = []
    for title, group in {**{name: [name] for name in names}, "mean": names}.items():
        cells = [f"{fmean(evaluation[way][name] for name in group):.1f}" for way in ways]
        for row in select(tests, set=title):
            cells += [f"{row['ndcg@10']:+.1f}", f"{row['p']:.3f}"]
        lines.append([title, *cells])
    return markdown_table(["set", "plain", "own", "foreign", "own - plain", "p", "own - foreign", "p"], lines)


def ways_table(train: Means, evaluation: Means) -> str:
    ways = [way for way in train if way != PLAIN and not way.startswith("a = ")]
    header = ["way", "train: by source", "by domain", "better on", "worst"]
    header += ["eval: by source", "by set", "better on", "worst"]
    return markdown_table(header, [[way, *summary(train, way), *summary(evaluation, way)] for way in ways])


def libraries_table(libraries: Means) -> str:
    steep = (STEEP_OWN, STEEP_FOREIGN)
    ways = (PLAIN, OWN, FOREIGN, *steep, *(f"{way}, {SPECIAL}" for way in steep))
    lines = [[name, *(f"{libraries[way][name]:.1f}" for way in ways)] for name in libraries[PLAIN]]
    lines.append(["**mean**", *(f"{fmean(libraries[way].values()):.1f}" for way in ways)])
    return markdown_table(["library", *ways], lines)


EXPERIMENT = Experiment(
    name="frequency-pooling",
    title="Context-frequency pooling of a frozen model",
    claim="Down-weighting the words that are common in a corpus improves retrieval in it, without training.",
    minutes=120,
    run=run,
    report=report,
)
