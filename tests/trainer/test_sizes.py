"""Sizes of a run that follow from pairs, model and machine."""

import pytest
from datasets import Dataset

from cde_hf import ContextualTrainingArguments, RetrievalSet
from cde_hf.data import NO_PROMPTS, Prompts
from cde_hf.trainer import sizes
from cde_hf.trainer.sizes import TextLengths, choose_sizes, count_steps, estimate_seconds


LENGTHS = TextLengths(query=6.0, document=20.0, longest=33)


def chosen(
    tiny,
    tmp_path,
    *,
    given=(),
    num_pairs=1000,
    largest_domain=1000,
    kind="plain",
    is_evaluated=True,
    lengths=LENGTHS,
    **arguments,
):
    args = ContextualTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **arguments)
    choose_sizes(
        args,
        set(given),
        tiny.make_model(kind),
        num_pairs,
        lengths,
        largest_domain=largest_domain,
        is_evaluated=is_evaluated,
    )
    return args


@pytest.mark.parametrize(("num_pairs", "batch_size"), [(9, 2), (100, 8), (300, 32), (1000, 64), (10**6, 64)])
def test_an_epoch_has_some_batches(tiny, tmp_path, num_pairs, batch_size):
    assert chosen(tiny, tmp_path, num_pairs=num_pairs).per_device_train_batch_size == batch_size


def test_length_covers_nearly_all_documents_that_the_encoder_can_read(tiny, tmp_path):
    assert chosen(tiny, tmp_path).max_length == 64
    longer = TextLengths(query=6.0, document=90.0, longest=300)
    assert chosen(tiny, tmp_path, lengths=longer).max_length == 64  # the encoder's positions


def test_what_the_user_gives_stays(tiny, tmp_path):
    given = {
        "per_device_train_batch_size": 10,
        "max_length": 12,
        "save_steps": 3,
        "max_steps": 7,
        "mini_batch_size": 4,
    }
    args = chosen(tiny, tmp_path, given=given, **given)
    assert {name: getattr(args, name) for name in given} == given
    assert args.eval_steps == 3


def test_dropout_is_off_unless_the_user_asks_for_it(tiny, tmp_path):
    assert chosen(tiny, tmp_path).disable_dropout
    assert not chosen(tiny, tmp_path, given={"disable_dropout"}, disable_dropout=False).disable_dropout


def test_the_best_of_four_states_or_the_start_is_chosen(tiny, tmp_path):
    args = chosen(tiny, tmp_path, given={"max_steps"}, max_steps=40)
    assert (args.eval_steps, args.save_steps) == (10, 10)
    assert args.eval_on_start and args.load_best_model_at_end and args.greater_is_better
    assert args.metric_for_best_model == "ndcg@10"
    assert chosen(tiny, tmp_path, kind="prefix").metric_for_best_model == "ndcg@10_own"


def test_without_held_out_queries_nothing_is_chosen_by_score(tiny, tmp_path):
    args = chosen(tiny, tmp_path, is_evaluated=False)
    assert not args.load_best_model_at_end
    assert args.eval_strategy == "no"


def test_little_memory_turns_gradient_caching_on(tiny, tmp_path, monkeypatch):
    assert chosen(tiny, tmp_path).mini_batch_size is None
    monkeypatch.setattr(sizes, "_memory", lambda args: 2**24)
    assert 4 <= chosen(tiny, tmp_path).mini_batch_size < 128


def test_the_limit_of_a_container_counts_as_its_memory(tiny, tmp_path, monkeypatch):
    args = chosen(tiny, tmp_path)
    monkeypatch.setattr(sizes, "_CONTAINER_LIMIT", tmp_path / "memory.max")
    whole = sizes._memory(args)
    for content, expected in {"max\n": whole, "16777216\n": 2**24, str(2**62): whole}.items():
        (tmp_path / "memory.max").write_text(content)
        assert sizes._memory(args) == expected


def test_bfloat16_follows_the_machine_unless_the_user_says_otherwise(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "_computes_bf16", lambda device: True)
    args = chosen(tiny, tmp_path)
    assert args.bf16 and args.mixed_precision == "bf16"
    assert not chosen(tiny, tmp_path, given={"bf16"}).bf16
    monkeypatch.setattr(sizes, "_computes_bf16", lambda device: False)
    assert not chosen(tiny, tmp_path).bf16


def test_lengths_include_prompts(tiny):
    pairs = Dataset.from_dict({"query": ["t0w1"] * 20, "document": ["t0w1 t0w2 t0w3"] * 19 + ["t0w1 " * 40]})
    bare = TextLengths.of(pairs, tiny.make_tokenizer(), NO_PROMPTS)
    assert (bare.query, bare.longest) == (3, 5)  # with [CLS] and [SEP]
    assert TextLengths.of(pairs, tiny.make_tokenizer(), Prompts("question ", "")).query == 4


def test_the_estimate_grows_with_steps_and_texts(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "_seconds_per_token", lambda *_: 1e-3)
    args = chosen(tiny, tmp_path)
    model = tiny.make_model("plain")
    seconds = [estimate_seconds(args, model, LENGTHS, num_steps, None) for num_steps in (10, 20)]
    assert seconds[1] == pytest.approx(2 * seconds[0])
    assert seconds[0] == pytest.approx(10 * 64 * 26 * 3 * 1e-3)  # forward and backward passes
    args.mini_batch_size = 8
    assert estimate_seconds(args, model, LENGTHS, 10, None) == pytest.approx(4 / 3 * seconds[0])


@pytest.mark.parametrize(("save_steps", "num_evaluations"), [(None, 5), (10, 5), (5, 9), (7, 7), (0.5, 3)])
def test_the_estimate_counts_the_evaluations_of_the_run(tiny, tmp_path, monkeypatch, save_steps, num_evaluations):
    monkeypatch.setattr(sizes, "_seconds_per_token", lambda *_: 1.0)
    given = {"max_steps": 40} | ({"save_steps": save_steps} if save_steps else {})
    args = chosen(tiny, tmp_path, given=given, **given)
    tested = RetrievalSet("one", {"d": "text"}, {"q": "text"}, {"q": {"d": 1}})
    model = tiny.make_model("plain")
    seconds = [estimate_seconds(args, model, LENGTHS, 40, each) for each in (None, tested)]
    assert seconds[1] - seconds[0] == pytest.approx((4 + num_evaluations) * 26)


def test_a_run_has_three_epochs_or_a_hundred_steps_on_a_cpu(tiny, tmp_path):
    assert chosen(tiny, tmp_path, num_pairs=300).max_steps == 3 * (300 // 32)
    assert chosen(tiny, tmp_path, num_pairs=10**5).max_steps == 100
    assert chosen(tiny, tmp_path, given={"num_train_epochs"}, num_train_epochs=2).max_steps == -1


def test_steps_are_counted_before_the_trainer_does(tiny, tmp_path):
    args = chosen(tiny, tmp_path, given={"num_train_epochs"}, num_train_epochs=2)
    assert count_steps(args, 1000) == 2 * (1000 // 64)
