"""
Threads search an index beside one that adds, deletes and saves.

Every score is the inner product with the vector of that id, every id was live at some time during its search, and no
id that was live all the time and is nearer was missed by exact search. In hybrid search, BM25 by the statistics of one
fit is added to all scores of a search.
"""

import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from cde_hf import ContextualIndex
from cde_hf.evaluation.bm25 import query_terms
from cde_hf.index.state import IndexState
from cde_hf.index.terms import AddedTerms
from cde_hf.modeling.term_vectors import count_documents, saturate
from cde_hf.vectors import vector_origin


DIM = 32
NUM_DOCUMENTS = 2000
NUM_THREADS = 8
DEPTH = 10


class Ledger:
    """All documents that ever were: their vectors, and when they were in the index."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.vectors = {}
        self.lives = {}  # by id: [earliest start, latest start, earliest end, latest end] of each of its lives
        self.live = []

    def new_documents(self, number):
        vectors = self.generator.normal(size=(number, DIM)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        names = [f"d{len(self.vectors) + row}" for row in range(number)]
        self.vectors.update(zip(names, vectors, strict=True))
        return names

    def add(self, names, action):
        for name in names:
            self.lives[name] = [*self.lives.get(name, []), [time.perf_counter(), np.inf, np.inf, np.inf]]
        action(names, np.stack([self.vectors[name] for name in names]))
        for name in names:
            self.lives[name][-1][1] = time.perf_counter()
        self.live += names

    def delete(self, names, action):
        for name in names:
            self.lives[name][-1][2] = time.perf_counter()
        action(names)
        for name in names:
            self.lives[name][-1][3] = time.perf_counter()
        gone = set(names)
        self.live = [name for name in self.live if name not in gone]

    def was_live(self, name, start, end):
        """Whether a document may have been in the index at some time."""
        return any(first <= end and last >= start for first, _, _, last in self.lives[name])

    def was_always_live(self, name, start, end):
        return any(latest <= start and earliest >= end for _, latest, earliest, _ in self.lives[name])


class Searcher(threading.Thread):
    """Searches until it is told to stop."""

    def __init__(self, index, ledger, is_exact, seed, is_over):
        super().__init__()
        self.index, self.ledger, self.is_exact, self.is_over = index, ledger, is_exact, is_over
        self.generator = np.random.default_rng(seed)
        self.num_searches = 0
        self.errors = []

    def run(self):
        while not self.is_over.is_set() and not self.errors:
            try:
                self.search()
            except Exception as error:
                self.errors.append(repr(error))

    def search(self):
        queries = self.generator.normal(size=(int(self.generator.integers(1, 4)), DIM)).astype(np.float32)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        start = time.perf_counter()
        found = self.index.search_vectors(queries, origin=self.index.origin, depth=DEPTH)
        end = time.perf_counter()
        for query, hits in zip(queries, found, strict=True):
            self.num_searches += 1
            self.check(query, hits, start, end)

    def right_scores(self, names, query, scores):
        """What the scores should be, as a function of names."""
        return lambda names: np.stack([self.ledger.vectors[name] for name in names]) @ query

    def check(self, query, hits, start, end):
        names = [hit.document_id for hit in hits]
        scores = np.array([hit.score for hit in hits])
        score_of = self.right_scores(names, query, scores)
        right = score_of(names)
        if len(set(names)) != DEPTH:
            self.errors.append(f"{names} are not {DEPTH} documents")
        if np.abs(scores - right).max() > 1e-5 or (np.diff(scores) > 0).any():
            self.errors.append(f"{names} have the scores {scores}, not {right}")
        if any(hit.text != f"text of {hit.document_id}" for hit in hits):
            self.errors.append(f"{hits} have texts of others")
        if dead := [name for name in names if not self.ledger.was_live(name, start, end)]:
            self.errors.append(f"{dead} were not in the index")
        if self.is_exact and self.num_searches % 50 == 0:
            others = [name for name in list(self.ledger.lives) if self.ledger.was_always_live(name, start, end)]
            nearer = score_of(others) > scores.min() + 1e-5
            if missed := {name for name, is_nearer in zip(others, nearer, strict=True) if is_nearer} - set(names):
                self.errors.append(f"{missed} were missed")


class HybridSearcher(Searcher):
    """Searches for texts, with all statistics that the index ever had at hand."""

    def __init__(self, *args, queries, fits):
        super().__init__(*args)
        self.queries, self.fits = queries, fits

    def search(self):
        texts = self.generator.choice(list(self.queries), 2, replace=False).tolist()
        start = time.perf_counter()
        found = self.index.search_batch(texts, depth=DEPTH, hybrid=True)
        end = time.perf_counter()
        for text, hits in zip(texts, found, strict=True):
            self.num_searches += 1
            self.check(text, hits, start, end)

    def right_scores(self, names, query, scores):
        vector, term_ids = self.queries[query]

        def score_by(fit, names):
            statistics = fit.postings.statistics
            counts = count_documents(self.index.model.tokenizer, texts_of(names))
            lengths = np.asarray(counts.sum(axis=1))
            weights = saturate(counts[:, term_ids].toarray(), lengths, statistics.mean_length)
            bm25 = weights @ statistics.idf[term_ids]
            dense = np.stack([self.ledger.vectors[name] for name in names]) @ vector
            return dense + fit.weight * bm25 / (2.2 * statistics.idf[term_ids].sum())

        differences = {index: np.abs(score_by(fit, names) - scores).max() for index, fit in enumerate(self.fits)}
        best = min(differences, key=differences.get)
        return lambda names: score_by(self.fits[best], names)


class Reader(threading.Thread):
    """Opens the saved index again and again."""

    def __init__(self, folder, model, ledger, is_over):
        super().__init__()
        self.folder, self.model, self.ledger, self.is_over = folder, model, ledger, is_over
        self.errors = []

    def run(self):
        while not self.is_over.is_set() and not self.errors:
            try:
                index = ContextualIndex.load(self.folder, self.model)
                expected = np.stack([self.ledger.vectors[name] for name in index.document_ids])
                np.testing.assert_allclose(index.vectors, expected, atol=1e-6)
            except Exception as error:
                self.errors.append(repr(error))


@pytest.fixture
def often_interrupted(monkeypatch):
    """Threads take turns often, and so do the bases of an index."""
    monkeypatch.setattr("cde_hf.index.state._MAX_ADDED_ROWS", 200)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def texts_of(names):
    return [f"text of {name}" for name in names]


def run(kind, model, folder, seconds, seed, indexes, make_searcher=Searcher, min_searches=100):
    """Searches, changes, saves and opens an index in many threads. Returns what went wrong."""
    ledger, is_over = Ledger(seed), threading.Event()
    origin = vector_origin(model)

    def build(names, vectors):
        texts = texts_of(names)
        indexes.append(ContextualIndex.from_vectors(model, names, vectors, texts=texts, origin=origin, kind=kind))

    def add(names, vectors):
        index.add_vectors(names, vectors, origin=origin, texts=texts_of(names))

    ledger.add(ledger.new_documents(NUM_DOCUMENTS), build)
    index = indexes[0]
    index.save(folder)
    searchers = [make_searcher(index, ledger, kind == "flat", seed + number, is_over) for number in range(NUM_THREADS)]
    threads = [*searchers, Reader(folder, model, ledger, is_over)]
    for thread in threads:
        thread.start()
    generator = np.random.default_rng(seed)
    deadline = time.perf_counter() + seconds
    try:
        while time.perf_counter() < deadline and not any(thread.errors for thread in threads):
            again = sorted(ledger.vectors.keys() - set(ledger.live))
            names = ledger.new_documents(int(generator.integers(1, 60)))
            ledger.add(names + generator.permutation(again)[: generator.integers(0, 3)].tolist(), add)
            num_deleted = int(generator.integers(1, 60) if generator.random() < 0.95 else len(ledger.live) // 2)
            if len(ledger.live) - num_deleted > NUM_DOCUMENTS // 2:
                ledger.delete(generator.permutation(ledger.live)[:num_deleted].tolist(), index.delete)
            if generator.random() < 0.1:
                index.save(folder)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    num_searches, num_lives = sum(each.num_searches for each in searchers), sum(map(len, ledger.lives.values()))
    sys.stdout.write(f"{kind}: {num_searches:,} searches while {num_lives:,} documents came and went\n")
    errors = [error for thread in threads for error in thread.errors]
    if sorted(index.document_ids) != sorted(ledger.live):
        errors.append("the index has other documents in the end")
    return errors if num_searches > min_searches else [*errors, "there were few searches"]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_searches_beside_a_writer(kind, minilm, tmp_path, stress_seconds, stress_seed, often_interrupted):
    assert run(kind, minilm, tmp_path / "index", stress_seconds, stress_seed, []) == []


@pytest.fixture
def hybrid_searcher(minilm, monkeypatch):
    """Makes searchers that know the terms of every fit. Vectors have the width of the model."""
    monkeypatch.setattr(f"{__name__}.DIM", 384)
    texts = [f"What is the text of d{number}, and of d{2 * number}?" for number in range(20, 40)]
    vectors = minilm.encode_query(texts, normalize_embeddings=True)
    terms = query_terms(minilm.tokenizer, texts)
    queries = {text: pair for text, *pair in zip(texts, vectors, terms, strict=True)}
    fits, with_postings = [], IndexState._with_postings

    def remember(state, postings):
        state = with_postings(state, postings)
        fits.append(state.terms)
        return state

    monkeypatch.setattr(IndexState, "_with_postings", remember)
    return partial(HybridSearcher, queries=queries, fits=fits)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_hybrid_searches_beside_a_writer(
    kind, minilm, tmp_path, stress_seconds, stress_seed, often_interrupted, hybrid_searcher
):
    # Encoding takes its time, so these run longer and search less.
    errors = run(kind, minilm, tmp_path / "index", 3 * stress_seconds, stress_seed, [], hybrid_searcher, 20)
    assert errors == [] and len(hybrid_searcher.keywords["fits"]) > 1


def test_a_hybrid_search_by_the_statistics_of_two_fits_is_noticed(
    minilm, tmp_path, stress_seed, often_interrupted, hybrid_searcher, monkeypatch
):
    fits, scores_of = hybrid_searcher.keywords["fits"], AddedTerms.scores
    monkeypatch.setattr(AddedTerms, "scores", lambda added, ids, _: scores_of(added, ids, fits[0].postings.statistics))
    assert run("flat", minilm, tmp_path / "index", 60, stress_seed, [], hybrid_searcher, 0)


def test_a_search_that_reads_two_states_is_noticed(minilm, tmp_path, stress_seed, often_interrupted, monkeypatch):
    indexes, hit_of = [], IndexState._hit
    monkeypatch.setattr(IndexState, "_hit", lambda _, row, score: hit_of(indexes[0]._state, row, score))
    assert run("flat", minilm, tmp_path / "index", 60, stress_seed, indexes)


def test_queries_and_documents_are_encoded_at_the_same_time(minilm, stress_seconds):
    index = ContextualIndex.build(minilm, {f"d{number}": f"The number {number}." for number in range(20)})
    queries = [f"{'What follows ' * length}number {length}?" for length in range(1, 9)]
    expected = [[hit.score for hit in hits] for hits in index.search_batch(queries, depth=5, hybrid=False)]
    errors = []
    deadline = time.perf_counter() + stress_seconds

    def search(number):
        while time.perf_counter() < deadline and not errors:
            hits = index.search(queries[number], depth=25, hybrid=False)
            scores = [hit.score for hit in hits if hit.document_id.startswith("d")][:5]
            if not np.allclose(scores, expected[number], atol=1e-5):
                errors.append((scores, expected[number]))

    threads = [threading.Thread(target=search, args=[number]) for number in range(len(queries))]
    for thread in threads:
        thread.start()
    while time.perf_counter() < deadline:
        index.add({"other": "Something else is written here."})
        index.delete(["other"])
    for thread in threads:
        thread.join()
    assert not errors
