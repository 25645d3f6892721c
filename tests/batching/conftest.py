"""A small data set of topics, and batch plans made from it."""

import numpy as np
import pytest
from datasets import Dataset

from cde_hf.batching import TfidfSurrogate, prepare_batch_plan


def topic_pairs(num_pairs=240, num_topics=8, domains=("news", "forum"), seed=0):
    """Pairs whose words come from the vocabulary of their topic; topics belong to domains in turn."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(num_pairs):
        topic = number % num_topics
        words = [f"topic{topic}word{word}" for word in generator.integers(0, 30, 14)]
        rows.append(
            {
                "query": f"question {number} " + " ".join(words[:5]),
                "document": f"answer {number} " + " ".join(words[3:]),
                "domain": domains[topic % len(domains)],
                "topic": topic,
            }
        )
    return Dataset.from_list(rows)


@pytest.fixture(scope="session")
def pairs():
    return topic_pairs()


@pytest.fixture(scope="session")
def plan(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans") / "plan"
    return prepare_batch_plan(pairs, folder, surrogate=TfidfSurrogate(dim=16), cluster_size=30)
