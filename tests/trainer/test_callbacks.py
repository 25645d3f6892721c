"""The progress bar."""

from transformers import TrainerState, TrainingArguments

from cde_hf.trainer.callbacks import ContrastiveProgressCallback


def test_the_progress_bar_shows_loss_and_accuracy(tmp_path):
    callback = ContrastiveProgressCallback()
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    state = TrainerState(max_steps=4, is_world_process_zero=True)
    callback.on_train_begin(args, state, None)
    callback.on_log(args, state, None, logs={"loss": 1.23456, "accuracy": 0.5, "hardness": 0.1})
    assert callback.training_bar.postfix == "loss=1.235, accuracy=0.500"
    callback.on_log(args, state, None, logs={"eval_ndcg@10_own": 0.5})
    assert callback.training_bar.postfix == "loss=1.235, accuracy=0.500"
    callback.on_train_end(args, state, None)
