"""A training run from the command line: pairs, batch plan, model, training, checkpoint."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from accelerate import PartialState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from ..batching.batch_plan import BATCH_PLAN
from ..batching.preparation import number_domains
from ..data import PairFacts, hold_out, load_documents
from ..files import CHECKPOINT
from ..messages import say
from ..processes import process_state
from .arguments import ContextualTrainingArguments
from .checkpoints import locked_output
from .models import is_contextual_checkpoint, load_model
from .report import TrainingReport
from .script_arguments import ScriptArguments, TrainingArgumentParser
from .sizes import TextLengths, choose_sizes, has_many_false_negatives
from .step import is_contextual
from .trainer import ContextualContrastiveTrainer


logger = logging.get_logger(__name__)


def run_training(arguments: Sequence[str] | None = None) -> None:
    """
    Trains a model by command-line arguments and saves it in `output_dir`.

    Args:
        arguments (`Sequence[str]`, *optional*):
            The arguments. Defaults to the command line of this process.
    """
    state = process_state()
    prog = None if arguments is None else "cde-hf train"
    arguments = sys.argv[1:] if arguments is None else arguments
    script, args = TrainingArgumentParser(prog=prog, shows_all="--help-all" in arguments).parse(arguments)
    if script.plan is not None:
        BATCH_PLAN.refuse_foreign(script.plan)
    with locked_output(args.output_dir):
        _train(script, args, state, _older_files(script, args))


def _train(
    script: ScriptArguments, args: ContextualTrainingArguments, state: PartialState, older_files: Sequence[Path]
) -> None:
    # Before the pairs are read and the plan is made, so that a mistake shows at once.
    prompts = script.load_prompts()
    with state.main_process_first():  # the other processes find the pairs in the cache
        pairs = script.load_pairs(args.seed)
    eval_sets = script.load_eval_sets()
    corpus = load_documents(script.corpus, text_column=script.text_column) if script.corpus is not None else None
    model, tokenizer = load_model(
        script.model,
        script.architecture,
        seed=args.seed,
        first_stage_layers=script.first_stage_layers,
        context_attention=script.context_attention,
        context_size=script.context_size,
        pooling=script.pooling,
        frequency_scale=script.frequency_scale,
    )
    facts = PairFacts.of(pairs)
    # FSDP does not keep the weights at the start, to which the training may return.
    tested, num_held_out = None, 0 if args.fsdp else script.num_held_out(facts.num_queries)
    if num_held_out > 0:
        pairs, tested = hold_out(pairs, num_held_out, corpus=corpus, seed=args.seed)
    lengths = TextLengths.of(pairs, tokenizer, prompts)
    choose_sizes(
        args,
        script.given,
        model,
        len(pairs),
        lengths,
        largest_domain=int(np.bincount(number_domains(pairs)[1]).max()),
        is_evaluated=tested is not None,
        has_new_layers=is_contextual(model) and not is_contextual_checkpoint(script.model),
    )
    if state.is_main_process:  # not before all data is read; `auto` must not resume a run that was replaced
        for path in older_files:
            shutil.rmtree(path, ignore_errors=True)
    state.wait_for_everyone()
    plan = script.load_plan(pairs, args.output_dir)
    if "filter_false_negatives" not in script.given:
        args.filter_false_negatives = has_many_false_negatives(plan)
    trainer = ContextualContrastiveTrainer(
        model,
        args,
        pairs,
        plan,
        tokenizer,
        eval_dataset=eval_sets if tested is None else [tested],
        prompts=prompts,
    )
    report = TrainingReport(trainer, script.model, facts, lengths, tested, corpus) if state.is_main_process else None
    if report is not None:
        report.begin()
    trainer.train(args.resume_from_checkpoint)
    if trainer.was_terminated:
        logger.warning(f"Stopped at step {trainer.state.global_step}. Resume with `--resume-from-checkpoint auto`.")
        return
    trainer.save_model()
    if eval_sets:
        trainer.evaluate()
    trainer.save_state()
    if report is not None:
        report.end()


def _older_files(script: ScriptArguments, args: ContextualTrainingArguments) -> list[Path]:
    """
    Returns the checkpoints and the plan of an earlier run that this one replaces.

    Refuses to train from the start where a model is, unless the user wants it replaced.
    """
    folder = Path(args.output_dir)
    checkpoints = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if CHECKPOINT.is_in(path)]
    if args.resume_from_checkpoint and (checkpoints or args.resume_from_checkpoint not in ("auto", "True", "true")):
        if script.overwrite:
            say(f"The run in `{folder}` is resumed, so `--overwrite` removes nothing.")
        return []
    if not script.overwrite and (checkpoints or CHECKPOINT.is_in(folder)):
        raise FileExistsError(
            f"`{folder}` holds the model or the checkpoints of an earlier run. Resume it with "
            "`--resume-from-checkpoint auto`, give another folder, or replace them with `--overwrite`."
        )
    plan = [folder / "plan"] if script.plan is None else []
    return [*checkpoints, *plan] if script.overwrite else []


__all__ = ["ScriptArguments", "TrainingArgumentParser", "run_training"]
