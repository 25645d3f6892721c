"""Labelled texts are read, split and scored; models of joint attention run in prefix attention."""

import gzip
import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from joint_as_prefix import as_prefix
from runner.labelled import read_labelled_sets, score_labelled
from runner.scoring import load_system
from runner.training import train_run


PLACES, ANIMALS = ("barn", "lake", "hill", "road"), ("cat", "dog", "owl")


@pytest.fixture
def intents(tmp_path):
    """A file of utterances, five of each label: places in one set, animals in the other."""
    rows = [
        {"query": f"{start} the {word} {number}", "document": "", "subdomain": f"{name}/{word}"}
        for name, words in (("places", PLACES), ("animals", ANIMALS))
        for word, (number, start) in product(words, enumerate(("where is", "show me", "go to", "find", "what is")))
    ]
    path = tmp_path / "intents.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_both_halves_have_all_labels_and_no_text_in_common(intents):
    animals, places = read_labelled_sets(intents, max_texts=20)
    assert (animals.name, places.name) == ("animals", "places")
    assert (len(animals.texts), len(places.texts)) == (12, 16)  # four of five, for the halves are equal
    assert set(places.labels[::2]) == set(places.labels[1::2]) == set(PLACES)
    assert set(places.texts[::2]).isdisjoint(places.texts[1::2])
    assert all(label in text for text, label in zip(places.texts, places.labels, strict=True))
    assert len(read_labelled_sets(intents, max_texts=2)[1].texts) == 8


def test_labelled_texts_are_scored_in_each_context_and_once(workspace, config, intents):
    sets = read_labelled_sets(intents, max_texts=4)
    folder = train_run(workspace, replace(config, pooling="context_frequency"))
    settings = {"contexts": ("own", "foreign", "none"), "context_size": 4, "max_length": 16, "num_draws": 2}
    scores = score_labelled(workspace, folder, "contextual", sets, **settings)
    assert scores.keys() == {"own", "foreign", "none"}
    assert all(0 <= score <= 100 for sets in scores.values() for tasks in sets.values() for score in tasks.values())
    (path,) = (workspace.runs / "scores").glob("labelled-*")
    path.write_text(json.dumps({"kept": {}}))
    assert score_labelled(workspace, folder, "contextual", sets, **settings) == {"kept": {}}
    plain = score_labelled(
        workspace, workspace.load_encoder(config), "plain", sets, **{**settings, "contexts": ("none",)}
    )
    assert plain["none"]["places"].keys() == {"classification", "clustering"}


@pytest.mark.parametrize("layers", [1, 2])
def test_joint_weights_run_in_prefix_attention(workspace, config, layers):
    folder = train_run(workspace, replace(config, architecture="joint", layers=layers))
    before = (folder / "config.json").read_text()
    other = as_prefix(folder, workspace.runs / "joint_as_prefix" / folder.name)
    assert as_prefix(folder, other) == other
    assert (folder / "config.json").read_text() == before
    assert (folder / "model.safetensors").samefile(other / "model.safetensors")
    vectors = []
    for each in (folder, other):
        system = load_system(each, "contextual", 16)
        assert system.model[0].model.config.context_attention == ("joint" if each == folder else "prefix")
        system.set_context(["A cat sleeps.", "An owl flies."])
        vectors.append(system.embed_documents(["The dog barks."]))
    # Before the first layer no context token has seen the text, so that with one layer all is the same.
    assert np.allclose(*vectors, atol=1e-5) == (layers == 1)
