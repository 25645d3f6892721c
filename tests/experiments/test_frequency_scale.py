"""The experiment on the scale: boilerplate is the same in all texts, and it scores what the package computes."""

from statistics import fmean

import pytest
import torch

from cde_hf import RetrievalSet, contextualize
from experiments.corpus_part import DIMENSIONS, EncodedSet
from experiments.frequency_scale import WITH, WITHOUT, rows_of, score_poolings
from experiments.runner.sets import NUM_WORDS, add_boilerplate


WORDS = [f"word{number}" for number in range(40)]
CORPUS = {
    f"{place} {action}": f"At {place} people {action}." for place in ("home", "sea") for action in ("eat", "run")
}
SET = RetrievalSet("days", CORPUS, {"q": "who runs at the sea?"}, {"q": {"sea run": 1, "home run": 1}})


def test_every_text_gets_the_same_words_and_keeps_its_own():
    noisy = add_boilerplate(SET, WORDS)
    boilerplate = set(noisy.queries["q"].split()) & set(WORDS)
    assert len(boilerplate) == NUM_WORDS
    for name, text in CORPUS.items():
        assert set(noisy.corpus[name].split()) & set(WORDS) == boilerplate
        assert [word for word in noisy.corpus[name].split() if word not in boilerplate] == text.split()
    assert add_boilerplate(SET, WORDS).corpus == noisy.corpus


def test_a_long_text_has_its_boilerplate_where_it_is_read():
    long = RetrievalSet("long", {"d": "the " * 500}, {"q": "what"}, {"q": {"d": 1}})
    places = [index for index, word in enumerate(add_boilerplate(long, WORDS).corpus["d"].split()) if word in WORDS]
    assert len(places) == NUM_WORDS and max(places) < 64 + NUM_WORDS


@pytest.mark.parametrize(("part", "corpus_dim"), [(WITH, DIMENSIONS), (WITHOUT, 0)])
def test_the_experiment_scores_what_the_package_computes(minilm, part, corpus_dim):
    encoded = EncodedSet(minilm, SET)
    scored = {(kind, pooling): scores for kind, pooling, scores in score_poolings(encoded)}
    model = contextualize(minilm, CORPUS, corpus_dim=corpus_dim, frequency_scale=0.05)
    documents = model.encode_document(list(CORPUS.values()), convert_to_tensor=True)
    expected = torch.cosine_similarity(model.encode_query([*SET.queries.values()], convert_to_tensor=True), documents)
    assert scored[part, "a = 0.05"] == encoded.score(expected.cpu().unsqueeze(0).numpy())


def test_gains_are_above_the_reference():
    ways = [
        ("clean", WITH, pooling, {"1": score, "2": score}) for pooling, score in (("a = 0.2", 0.5), ("a = 0.1", 0.6))
    ]
    rows = rows_of("e", {"one": ways, "two": ways})
    (gain,) = [row for row in rows if row["value"] == "above 0.2"]
    assert gain["pooling"] == "a = 0.1" and gain["points"] == pytest.approx(10.0)
    assert fmean(row["points"] for row in rows if row["pooling"] == "a = 0.2") == pytest.approx(50.0)
