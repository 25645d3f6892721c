"""Gradient caching against plain autograd over the same mini-batches, with the same dropout."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from cde_hf import Context
from cde_hf.trainer import GradientCache, filtered_info_nce, gradient_cache
from cde_hf.trainer.step import Encoder, MiniBatchSize, Step, Texts, embed_plainly


NUM_QUERIES, NUM_NEGATIVES, NUM_CONTEXT = 5, 3, 4


def random_texts(num_texts, seed, vocab_size=100):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 12, (num_texts,), generator=generator)
    mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).long()
    return Texts(torch.randint(4, vocab_size, mask.shape, generator=generator) * mask, mask, lengths.tolist())


@pytest.fixture
def step():
    return Step(random_texts(2 * NUM_QUERIES + NUM_NEGATIVES, 0), NUM_QUERIES, random_texts(NUM_CONTEXT, 1))


def loss_function(embeddings):
    left_out = torch.rand(NUM_QUERIES, NUM_QUERIES + NUM_NEGATIVES, generator=torch.Generator().manual_seed(2)) < 0.2
    queries, documents = embeddings[:NUM_QUERIES], embeddings[NUM_QUERIES:]
    return filtered_info_nce(queries, documents, logit_scale=5.0, left_out=left_out)


def one_graph(encoder, step, size, context_size):
    """Loss of all mini-batches in one graph, in the order in which the cache draws their dropout."""

    def embed(texts, size, function):
        parts = {tuple(rows.tolist()): function(mini_batch) for rows, mini_batch in size.split(texts)}
        embeddings = {row: part[place] for rows, part in parts.items() for place, row in enumerate(rows)}
        return torch.stack([embeddings[row] for row in range(len(texts))])

    context = Context()
    if encoder.has_context:
        vectors = embed(step.context_documents, context_size, encoder.embed_context)
        context = Context(vectors)
        if encoder.has_prefix:
            context = encoder.add_block(context)
    return loss_function(embed(step.texts, size, lambda part: encoder.embed_texts(part, context)))


def gradients(model, compute_loss, factor=1.0):
    model.zero_grad()
    torch.manual_seed(3)
    output = compute_loss()
    (output.loss * factor).backward()
    random_number = torch.rand(1)
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert sum(gradient.abs().max() > 0 for gradient in found.values()) >= len(found) - 1  # but the null embedding
    return output.loss.detach(), found, random_number


def assert_equal(found, expected, tolerance):
    loss, gradients, random_number = found
    expected_loss, expected_gradients, expected_number = expected
    torch.testing.assert_close(loss, expected_loss, atol=tolerance, rtol=tolerance)
    assert random_number == expected_number  # the random state goes on as if nothing had been replayed
    for name, gradient in expected_gradients.items():
        error = (gradients[name] - gradient).abs().max()
        assert error <= tolerance * gradient.abs().max(), (name, error)


def cached(encoder, step, size, context_size, **options):
    cache = GradientCache(
        encoder, mini_batch_size=size, context_mini_batch_size=context_size, touch_all=False, **options
    )
    return cache.compute_loss(step, loss_function)


KINDS = ["joint", "prefix", "plain"]
SIZES = [MiniBatchSize(1), MiniBatchSize(3), MiniBatchSize(13), MiniBatchSize(50), MiniBatchSize(num_tokens=20)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("context_size", [MiniBatchSize(1), MiniBatchSize(3), MiniBatchSize(9)], ids=str)
def test_cached_gradients_are_those_of_autograd(tiny, step, kind, size, context_size):
    model = tiny.make_model(kind, dtype="float64").train()
    encoder = Encoder(model, model)
    expected = gradients(model, lambda: one_graph(encoder, step, size, context_size))
    assert_equal(gradients(model, lambda: cached(encoder, step, size, context_size)), expected, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 2e-5)])
def test_dropout_is_replayed(tiny, step, kind, dtype, tolerance):
    fields = {} if kind == "plain" else {"sequence_dropout_prob": 0.3}
    model = tiny.make_model(kind, dropout=0.2, dtype=dtype, **fields).train()
    encoder, size, context_size = Encoder(model, model), MiniBatchSize(3), MiniBatchSize(2)
    expected = gradients(model, lambda: one_graph(encoder, step, size, context_size))
    assert_equal(gradients(model, lambda: cached(encoder, step, size, context_size)), expected, tolerance)
    model.eval()
    without_dropout = gradients(model, lambda: one_graph(encoder, step, size, context_size))
    assert (without_dropout[0] - expected[0]).abs() > 1e-3


def test_without_replay_dropout_is_noticed(tiny, step, monkeypatch):
    class Forgetful(gradient_cache.RandomState):
        def replayed(self):
            return torch.enable_grad()

    monkeypatch.setattr(gradient_cache, "RandomState", Forgetful)
    model = tiny.make_model("prefix", dropout=0.2, dtype="float64").train()
    encoder, size = Encoder(model, model), MiniBatchSize(3)
    expected = gradients(model, lambda: one_graph(encoder, step, size, size))
    with pytest.raises(AssertionError):
        assert_equal(gradients(model, lambda: cached(encoder, step, size, size)), expected, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "context_frequency"])
def test_mini_batches_make_the_plain_step(tiny, step, kind, pooling):
    model = tiny.make_model(kind, dtype="float64", **({} if kind == "plain" else {"pooling": pooling})).train()
    encoder = Encoder(model, model)
    expected = gradients(model, lambda: loss_function(embed_plainly(encoder, step)))
    found = gradients(model, lambda: cached(encoder, step, MiniBatchSize(4), MiniBatchSize(2)))
    assert_equal(found, expected, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_of_the_loss_reaches_every_gradient(tiny, step, kind):
    model = tiny.make_model(kind, dtype="float64").train()
    encoder = Encoder(model, model)
    compute = partial(cached, encoder, step, MiniBatchSize(3), MiniBatchSize(2))
    once, scaled = gradients(model, compute), gradients(model, compute, factor=1024 / 3)
    for name, gradient in once[1].items():
        torch.testing.assert_close(scaled[1][name], gradient * 1024 / 3)


def test_two_losses_add_up(tiny, step):
    model = tiny.make_model("prefix", dtype="float64").train()
    encoder = Encoder(model, model)
    compute = partial(cached, encoder, step, MiniBatchSize(3), MiniBatchSize(2))
    once = gradients(model, compute)
    model.zero_grad()
    (compute().loss + compute().loss).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, 2 * once[1][name])


def test_autocast_is_replayed(tiny, step):
    model = tiny.make_model("prefix").train()
    encoder, size = Encoder(model, model), MiniBatchSize(3)

    def under_autocast(compute):
        def run():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return compute(encoder, step, size, size)

        model.zero_grad()
        output = run()
        with torch.autocast("cpu", dtype=torch.bfloat16):  # as the wrapped forward of a trainer has it
            output.loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected, found = under_autocast(one_graph), under_autocast(cached)
    for name, gradient in expected.items():
        if gradient.abs().max() > 0:
            assert torch.cosine_similarity(found[name].flatten(), gradient.flatten(), dim=0) > 0.98, name


def test_no_graph_outlives_a_mini_batch(tiny, step):
    model = tiny.make_model("prefix").train()
    alive, most = 0, 0

    class CountingEncoder(Encoder):
        def embed_texts(self, texts, context):
            nonlocal alive, most
            embeddings = super().embed_texts(texts, context)
            if embeddings.requires_grad:
                alive += 1
                most = max(most, alive)
                embeddings.register_hook(lambda gradient: release())
            return embeddings

    def release():
        nonlocal alive
        alive -= 1

    cached(CountingEncoder(model, model), step, MiniBatchSize(3), MiniBatchSize(2)).loss.backward()
    assert most == 1


def test_gradients_are_synchronised_in_the_last_backward_pass_alone(tiny, step):
    model = tiny.make_model("prefix").train()
    num_open, synchronised = 0, []

    class NoSync:
        def __enter__(self):
            nonlocal num_open
            num_open += 1

        def __exit__(self, *error):
            nonlocal num_open
            num_open -= 1

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: synchronised.append(p) if num_open == 0 else None)
    cache = GradientCache(
        Encoder(model, model),
        mini_batch_size=MiniBatchSize(3),
        context_mini_batch_size=MiniBatchSize(2),
        no_sync=NoSync,
    )
    cache.compute_loss(step, loss_function).loss.backward()
    assert len(synchronised) == len({id(parameter) for parameter in synchronised}) == len(list(model.parameters()))


def test_a_first_stage_that_is_not_trained_gets_no_gradient(tiny, step):
    model = tiny.make_model("prefix", dtype="float64").train()
    model.first_stage_model.requires_grad_(False)
    encoder = Encoder(model, model)
    expected = gradients(model, lambda: loss_function(embed_plainly(encoder, step)))
    assert_equal(gradients(model, lambda: cached(encoder, step, MiniBatchSize(3), MiniBatchSize(2))), expected, 1e-9)
    assert not any("first_stage" in name for name in expected[1])


class WithoutTransformer(Encoder):
    """Embeds the token ids alone: transformers' own reads from the device, as of masks, are not ours."""

    has_context, has_prefix, trains_context = True, False, True

    def __init__(self, model):
        self.model = model

    def embed_context(self, documents):
        return self.model(documents.input_ids).mean(dim=1)

    def embed_texts(self, texts, context):
        return self.model(texts.input_ids).mean(dim=1) + context.embeddings.mean(dim=0)


@pytest.mark.parametrize("num_texts", [1, 50])
def test_a_step_reads_nothing_from_the_device(step, num_texts, monkeypatch):
    """Tensors on the device `meta` have no values: to read one is an error, as it makes the host wait on a GPU."""
    random_state = SimpleNamespace(get_rng_state=lambda device: None, set_rng_state=lambda state, device: None)
    monkeypatch.setattr(torch, "meta", random_state, raising=False)
    texts, documents = (
        replace(part, input_ids=part.input_ids.to("meta"), attention_mask=part.attention_mask.to("meta"))
        for part in (step.texts, step.context_documents)
    )
    model = torch.nn.Embedding(100, 8, device="meta")
    size = MiniBatchSize(num_texts)
    cache = GradientCache(WithoutTransformer(model), mini_batch_size=size, context_mini_batch_size=size)

    def loss_function(embeddings):
        return filtered_info_nce(embeddings[:NUM_QUERIES], embeddings[NUM_QUERIES:], logit_scale=5.0)

    cache.compute_loss(Step(texts, NUM_QUERIES, documents, block_seed=1), loss_function).loss.backward()
    assert model.weight.grad.shape == model.weight.shape
