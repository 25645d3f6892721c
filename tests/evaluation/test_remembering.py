"""An embedder that computes shared vectors once."""

import numpy as np

from cde_hf.evaluation import Embedder, evaluate
from cde_hf.evaluation.systems import _NUM_BLOCKS, RememberingEmbedder
from cde_hf.evaluation.whitening import WhitenedEmbedder


class CountingEmbedder:
    name = "counting"

    def __init__(self):
        self.num_texts = 0

    def embed_queries(self, texts):
        self.num_texts += len(texts)
        return np.array([[len(text), text.count("a"), 1.0] for text in texts], dtype=np.float32)

    def embed_documents(self, texts):
        return -self.embed_queries(texts)


def test_the_same_texts_are_embedded_once():
    counting = CountingEmbedder()
    remembering = RememberingEmbedder(counting)
    assert isinstance(remembering, Embedder) and remembering.name == "counting"
    first = remembering.embed_queries(["a cat", "a dog"])
    np.testing.assert_array_equal(first, counting.embed_queries(["a cat", "a dog"]))
    counting.num_texts = 0
    first[:] = 0  # the caller's own copy
    assert remembering.embed_queries(["a cat", "a dog"])[0, 0] == 5
    assert counting.num_texts == 0


def test_queries_documents_and_other_texts_are_told_apart():
    remembering = RememberingEmbedder(CountingEmbedder())
    queries, documents = remembering.embed_queries(["cat"]), remembering.embed_documents(["cat"])
    np.testing.assert_array_equal(queries, -documents)
    assert remembering.embed_queries(["a cat"])[0, 0] == 5


def test_what_was_not_used_for_long_is_forgotten():
    counting = CountingEmbedder()
    remembering = RememberingEmbedder(counting)
    for number in range(_NUM_BLOCKS + 1):
        remembering.embed_queries([f"query {number}"])
        remembering.embed_queries(["often"])
    assert counting.num_texts == _NUM_BLOCKS + 2
    remembering.embed_queries(["query 0"])
    assert counting.num_texts == _NUM_BLOCKS + 3


def test_a_table_of_a_model_plain_and_whitened_embeds_every_text_once(animals, fruits):
    counting = CountingEmbedder()
    plain = RememberingEmbedder(counting)
    arguments = {"contexts": ("own", "foreign", "none"), "context_size": 100}
    evaluation = evaluate([plain, WhitenedEmbedder(plain)], [animals, fruits], **arguments)
    num_texts = sum(len(part.queries) + len(part.corpus) for part in (animals, fruits))
    samples = sum(len(part.corpus) for part in (animals, fruits))  # the context documents come in another order
    assert counting.num_texts <= num_texts + samples
    fresh = CountingEmbedder()
    assert evaluate([fresh, WhitenedEmbedder(fresh)], [animals, fruits], **arguments) == evaluation
    assert fresh.num_texts > 2 * num_texts
