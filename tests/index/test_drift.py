"""Drift: it stays low while a corpus grows and rises when it changes."""

import numpy as np
import pytest

from cde_hf import ContextualIndex, contextualize
from cde_hf.index.drift import CorpusMoments, measure_drift


def topic(generator, centre, num_documents):
    return centre + generator.normal(size=(num_documents, 32))


def test_moments_of_parts_are_those_of_the_whole():
    vectors = np.random.default_rng(0).normal(size=(50, 8))
    whole = CorpusMoments.of(vectors)
    parts = CorpusMoments.of(vectors[:13]).and_of(CorpusMoments.of(vectors[13:]))
    np.testing.assert_allclose(parts.mean, whole.mean)
    assert parts.variance == pytest.approx(whole.variance) == pytest.approx(vectors.var(axis=0).sum())
    assert parts.num_documents == 50


def test_growth_is_no_drift_and_change_is():
    generator = np.random.default_rng(0)
    centre, other = generator.normal(size=(2, 32))
    then = CorpusMoments.of(topic(generator, centre, 500))
    grown = then.and_of(CorpusMoments.of(topic(generator, centre, 2000)))
    values = [measure_drift(then, grown, context_size=64).value]
    for share in (0.1, 0.3, 0.5):
        new = CorpusMoments.of(topic(generator, other, round(500 * share / (1 - share))))
        values.append(measure_drift(then, then.and_of(new), context_size=64).value)
    assert values[0] < 0.5
    assert values == sorted(values)
    assert values[-1] > 4


def test_the_index_tells_a_new_topic_from_more_of_the_same(minilm, tmp_path):
    animals = ["cat", "dog", "owl", "cow", "hen", "fox", "bear", "wolf", "goat", "duck"]
    texts = [f"The {name} {does} in the field." for name in animals for does in ("sleeps", "eats", "runs", "rests")]
    order = np.random.default_rng(0).permutation(40)
    old, same = [texts[number] for number in order[:20]], [texts[number] for number in order[20:]]
    other = [f"Interest rates of {number} percent hurt the bond market." for number in range(20)]
    index = ContextualIndex.build(contextualize(minilm, None), {str(n): text for n, text in enumerate(old)})
    assert index.drift().value == 0
    grown, changed = index.drift(same), index.drift(other)
    assert grown.value < 1 < 4 < changed.value
    assert not grown.should_rebuild and changed.should_rebuild
    assert "the context still fits" in str(grown) and "build the index again" in str(changed)
    # What is added counts from then on, and what the corpus was when the index was built is not forgotten.
    index.add({f"other {number}": text for number, text in enumerate(other)})
    index.save(tmp_path / "index")
    loaded = ContextualIndex.load(tmp_path / "index", index.model)
    assert loaded.drift().value == pytest.approx(changed.value, rel=1e-3)
    loaded.delete([f"other {number}" for number in range(20)])
    assert loaded.drift().value < 0.01


def test_an_empty_index_cannot_drift(minilm):
    index = ContextualIndex.build(contextualize(minilm, None), {"a": "The cat sleeps."})
    index.delete(["a"])
    with pytest.raises(ValueError, match="index is empty and there are no new documents"):
        index.drift()


def test_drift_reads_the_texts_of_a_dictionary_and_not_its_ids(minilm):
    index = ContextualIndex.build(contextualize(minilm, None), ["The cat sleeps.", "The dog barks."])
    new = {"a": "Interest rates rise.", "b": "The bank lends money."}
    assert index.drift(new).value == pytest.approx(index.drift(list(new.values())).value)
