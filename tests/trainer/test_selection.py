"""A training ends with its best state, or with its start if that was better."""

import pytest
import torch

from cde_hf.data import retrieval_set_from_pairs
from cde_hf.trainer import find_last_checkpoint


SELECTION = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "eval_on_start": True,
    "save_strategy": "steps",
    "save_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "ndcg@10",
    "greater_is_better": True,
    "max_steps": 6,
}


def make_run(tiny, folder, scores=None, kind="plain", **changes):
    """A training whose evaluations give these scores, one after the other."""
    model = tiny.make_model(kind)
    tested = retrieval_set_from_pairs("held-out", tiny.make_pairs().select(range(8)))
    trainer = tiny.make_trainer(model, folder, eval_dataset=[tested], **{**SELECTION, **changes})
    if scores is not None:
        remaining = iter(scores)

        def evaluate(ignore_keys=None):
            metrics = {"eval_ndcg@10": next(remaining)}
            trainer.control = trainer.callback_handler.on_evaluate(
                trainer.args, trainer.state, trainer.control, metrics
            )
            return metrics

        trainer.evaluate = evaluate
    return trainer


def weights_of(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def is_same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_training_that_did_not_help_ends_with_its_start(tiny, tmp_path):
    trainer = make_run(tiny, tmp_path, scores=[0.5, 0.4, 0.5, 0.3])
    start = weights_of(trainer.model)
    trainer.train()
    assert trainer.ends_with_start
    assert is_same(weights_of(trainer.model), start)
    trainer.save_model()
    assert is_same(weights_of(type(trainer.model).from_pretrained(tmp_path)), start)


def test_a_training_ends_with_its_best_state(tiny, tmp_path):
    trainer = make_run(tiny, tmp_path, scores=[0.5, 0.4, 0.7, 0.6], save_total_limit=1)
    start = weights_of(trainer.model)
    trainer.train()
    assert not trainer.ends_with_start
    best = weights_of(type(trainer.model).from_pretrained(tmp_path / "checkpoint-4"))
    assert is_same(weights_of(trainer.model), best)
    assert not is_same(best, start)


@pytest.mark.parametrize("scores", [[0.5, 0.4, 0.45, 0.3], [0.5, 0.4, 0.7, 0.6]])
def test_a_resumed_training_chooses_the_same_state(tiny, tmp_path, scores):
    whole = make_run(tiny, tmp_path / "whole", scores=scores)
    whole.train()
    first = make_run(tiny, tmp_path / "cut", scores=scores[:3], save_total_limit=None)

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    save = first._save_checkpoint
    first._save_checkpoint = lambda *args: (save(*args), stop() if first.state.global_step == 4 else None)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert find_last_checkpoint(tmp_path / "cut").name == "checkpoint-4"
    second = make_run(tiny, tmp_path / "cut", scores=scores[3:])
    second.train("auto")
    assert second.ends_with_start == whole.ends_with_start
    assert is_same(weights_of(second.model), weights_of(whole.model))


def test_real_scores_choose_a_contextual_model_too(tiny, tmp_path):
    trainer = make_run(tiny, tmp_path, kind="prefix", metric_for_best_model="ndcg@10_own")
    trainer.train()
    scores = [line["eval_ndcg@10_own"] for line in trainer.state.log_history if "eval_ndcg@10_own" in line]
    assert len(scores) == 4
    assert trainer.state.best_metric == max(scores)
    assert trainer.state.best_global_step == 2 * scores.index(max(scores))
