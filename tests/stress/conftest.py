"""Stress tests run for `STRESS_SECONDS` each, 2 by default, with the seed `STRESS_SEED`. See `make test-stress`."""

import os
import random
import sys

import pytest


@pytest.fixture
def stress_seconds():
    """How long one test runs."""
    return float(os.environ.get("STRESS_SECONDS", 2))


@pytest.fixture
def stress_seed():
    """The seed of a test, which is shown if it fails."""
    seed = int(os.environ.get("STRESS_SEED") or random.randrange(2**31))
    sys.stdout.write(f"STRESS_SEED={seed}\n")
    return seed
