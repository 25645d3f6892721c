"""Settings that mean nothing are refused where they are given, before any model or data is read."""

import math

import numpy as np
import pytest
from datasets import Dataset

from cde_hf import (
    ContextualTrainingArguments,
    SentenceTransformerSurrogate,
    TfidfSurrogate,
    contextualize,
    encode_corpus,
    prepare_batch_plan,
    set_context,
)
from cde_hf.batching import KMeansSettings
from cde_hf.cli import main
from cde_hf.data import check_counts, check_positive, check_seed, pseudo_retrieval_set
from cde_hf.trainer import script_arguments


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, math.nan])
def test_a_count_is_a_whole_number_of_at_least_one(count):
    with pytest.raises(ValueError, match=f"`size` must be an integer of at least 1, got {count!r}"):
        check_counts(number=None, other=np.int64(1), size=count)


@pytest.mark.parametrize("number", [0, -0.1, math.nan, math.inf, "1"])
def test_a_scale_is_finite_and_positive(number):
    with pytest.raises(ValueError, match=f"`scale` must be positive, got {number!r}"):
        check_positive(number=None, other=np.float32(0.1), scale=number)


@pytest.mark.parametrize("seed", [None, -1, 0.5, "0", False])
def test_a_seed_is_a_whole_number(seed):
    check_seed(np.int64(0))
    with pytest.raises(ValueError, match=f"`seed` must be an integer of at least 0, got {seed!r}"):
        check_seed(seed)


PAIRS = Dataset.from_dict({"query": ["Who barks?"], "document": ["A dog."]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: contextualize("absent", ["a"], size=0), "`size` must be an integer of at least 1, got 0"),
        (lambda folder: contextualize("absent", ["a"], size=-3), "`size` must be"),
        (lambda folder: contextualize("absent", ["a"], corpus_dim=-1), "`corpus_dim` must be 0, for no corpus part"),
        (lambda folder: contextualize("absent", ["a"], corpus_dim="256"), "`corpus_dim` must be 0.* got '256'"),
        (lambda folder: contextualize("absent", ["a"], corpus_dim=2.5), "`corpus_dim` must be 0.* got 2.5"),
        (lambda folder: contextualize("absent", ["a"], corpus_dim=1), "`corpus_dim` must be 0, for no corpus part"),
        (
            lambda folder: contextualize("absent", ["a"], frequency_scale=0),
            "`frequency_scale` must be positive, got 0",
        ),
        (
            lambda folder: contextualize("absent", ["a"], seed=None),
            "`seed` must be an integer of at least 0, got None",
        ),
        (lambda folder: set_context(None, ["a"], size=0), "`size` must be"),
        (lambda folder: set_context(None, ["a"], seed=None), "`seed` must be"),
        (lambda folder: encode_corpus(None, "absent", folder, batch_size=0), "`batch_size` must be"),
        (lambda folder: encode_corpus(None, "absent", folder, shard_size=-1), "`shard_size` must be"),
        (lambda folder: encode_corpus(None, "absent", folder, seed=None), "`seed` must be"),
        (lambda folder: pseudo_retrieval_set("pets", "absent", num_queries=0), "`num_queries` must be"),
        (lambda folder: pseudo_retrieval_set("pets", "absent", seed=None), "`seed` must be"),
        (
            lambda folder: prepare_batch_plan(PAIRS, folder, dtype="int8"),
            "`dtype` must be `float16` or `float32`, got",
        ),
        (lambda folder: prepare_batch_plan(PAIRS, folder, cluster_size=1), "`cluster_size` must be at least 2, got 1"),
        (lambda folder: KMeansSettings(num_iterations=0), "`num_iterations` must be"),
        (lambda folder: KMeansSettings(num_starts=0), "`num_starts` must be"),
        (lambda folder: KMeansSettings(max_training_pairs=-1), "`max_training_pairs` must be"),
        (lambda folder: KMeansSettings(seed=None), "`seed` must be"),
        (lambda folder: TfidfSurrogate(dim=0), "`dim` must be"),
        (lambda folder: TfidfSurrogate(seed=None), "`seed` must be"),
        (lambda folder: SentenceTransformerSurrogate("absent", max_length=0), "`max_length` must be"),
    ],
)
def test_a_function_names_its_argument(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_device_train_batch_size": 0}, "`per_device_train_batch_size` must be an integer of at least 1"),
        (
            {"per_device_train_batch_size": 1},
            "A batch of 1 pair has no negatives. Raise `per_device_train_batch_size`",
        ),
        ({"per_device_eval_batch_size": 0}, "`per_device_eval_batch_size` must be"),
        ({"gradient_accumulation_steps": 0}, "`gradient_accumulation_steps` must be an integer of at least 1, got 0"),
        ({"mini_batch_size": -4}, "`mini_batch_size` must be"),
        ({"max_length": 0}, "`max_length` must be"),
        ({"context_max_length": 0}, "`context_max_length` must be"),
        ({"temperature": math.nan}, "`temperature` must be positive, got nan"),
        ({"filter_margin": math.nan}, "`filter_margin` must be a finite number, got nan. To keep all negatives, set"),
        ({"filter_relative_margin": math.inf}, "`filter_relative_margin` must be a finite number, got inf"),
        ({"matryoshka_dims": 0}, r"`matryoshka_dims` must be a list of widths such as \[768, 256, 64\], got 0"),
        ({"matryoshka_dims": []}, "`matryoshka_dims` must be a list of widths"),
        ({"matryoshka_dims": [64, 0]}, "`matryoshka_dims` must be an integer of at least 1, got 0"),
        ({"seed": None}, "`seed` must be an integer of at least 0, got None"),
    ],
)
def test_training_arguments_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        ContextualTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **changes)


def test_a_batch_of_one_pair_may_have_other_negatives(tmp_path):
    for option in ({"in_batch_negatives": False}, {"gather_across_devices": True}):
        ContextualTrainingArguments(output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=1, **option)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context_size": 0}, "`context_size` must be an integer of at least 1, got 0"),
        ({"frequency_scale": 0.0}, "`frequency_scale` must be positive, got 0.0"),
        ({"frequency_scale": math.nan}, "`frequency_scale` must be positive, got nan"),
        ({"first_stage_layers": 0}, "`first_stage_layers` must be"),
        ({"max_pairs": -1}, "`max_pairs` must be"),
        ({"cluster_size": 1}, "`cluster_size` must be at least 2, got 1"),
    ],
)
def test_a_training_script_refuses_its_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        script_arguments.ScriptArguments(data=["absent"], **changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("prepare absent plan --iterations 0", "--iterations: must be a whole number of at least 1, got '0'"),
        ("prepare absent plan --starts 0", "--starts: must be"),
        ("prepare absent plan --surrogate-dim -4", "--surrogate-dim: "),
        ("prepare absent plan --cluster-size x", "--cluster-size: must be a whole number of at least 2, got 'x'"),
        ("prepare absent plan --seed 1.5", "--seed: must be a whole number of at least 0, got '1.5'"),
        ("evaluate absent --data absent --context-size 0", "--context-size: must be"),
        ("contextualize absent absent out --size 0", "--size: must be"),
        ("contextualize absent absent out --corpus-dim=-1", "--corpus-dim: must be a whole number of at least 0"),
        ("index absent absent out --batch-size 0", "--batch-size: must be"),
        ("encode absent absent out --shard-size 0", "--shard-size: must be"),
        ("search absent query --depth 0", "--depth: must be"),
    ],
)
def test_a_command_names_its_option(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert message in capsys.readouterr().err
