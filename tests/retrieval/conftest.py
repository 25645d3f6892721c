"""A small retrieval set and real models that the tests of this folder share."""

import resource
from contextlib import contextmanager

import pytest

from cde_hf.data.retrieval_sets import RetrievalSet


@pytest.fixture
def full_disk():
    """
    Context in which no file can grow beyond a number of bytes: the system calls of a full disk fail in the same
    places. Python ignores the signal that comes with it.
    """

    @contextmanager
    def limit(num_bytes):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def animals():
    """A retrieval set of six documents, one of them empty, and three queries, one of them with two answers."""
    return RetrievalSet(
        "animals",
        corpus={
            "cat": "The cat sleeps on the warm sofa.",
            "dog": "The dog barks at the full moon.",
            "wolf": "The wolf howls at the moon.",
            "whale": "The whale sings in the deep sea.",
            "owl": "The owl hunts mice by night.",
            "nothing": "",
        },
        queries={"q1": "Who sleeps on a sofa?", "q2": "Which animals make noise at the moon?", "q3": "deep sea song"},
        qrels={"q1": {"cat": 1}, "q2": {"dog": 2, "wolf": 1, "cat": 0}, "q3": {"whale": 1}},
    )


@pytest.fixture
def fruits():
    """A second retrieval set."""
    return RetrievalSet(
        "fruits",
        corpus={
            "a": "An apple grows on a tree.",
            "b": "A banana is yellow and bent.",
            "c": "A cherry is small and red.",
        },
        queries={"1": "a yellow fruit", "2": "a small red fruit"},
        qrels={"1": {"b": 1}, "2": {"c": 1}},
    )
