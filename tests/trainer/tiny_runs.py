"""
Tiny training runs, for tests in this process and, started as a script, on several.

As a script: `tiny_runs.py CASES.json OUTPUT`. Each case is a dictionary of options of `run`; its gradients and weights
go to `OUTPUT/NAME.safetensors`, its facts to `OUTPUT/NAME.json`, written by the first process.
"""

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from transformers import AutoModel, NomicBertConfig, PreTrainedTokenizerFast, TrainerCallback

from cde_hf.batching import BatchPlan, ClusteredBatchSampler, TfidfSurrogate, prepare_batch_plan
from cde_hf.modeling import CDEConfig, CDEModel
from cde_hf.trainer import ContextualContrastiveTrainer, ContextualTrainingArguments, gradient_cache, resumable_trainer


NUM_TOPICS, WORDS_PER_TOPIC = 8, 20
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "search_query", "search_document", ":", "question", "answer"]


def make_pairs(num_pairs=128, num_negatives=0, seed=0):
    """Pairs about topics in two domains; queries that end on a number have it in common with their document."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(num_pairs):
        topic = number % NUM_TOPICS
        length = 4 + number % 9
        words = [f"t{topic}w{word}" for word in generator.integers(0, WORDS_PER_TOPIC, length + 4)]
        row = {
            "query": " ".join(["question", *words[:4]]),
            "document": " ".join(["answer", *words[2:]]),
            "domain": "news" if topic % 2 else "forum",
        }
        if num_negatives:
            count = 1 + number % num_negatives
            row["negatives"] = [
                " ".join(f"t{topic}w{word}" for word in generator.integers(0, WORDS_PER_TOPIC, 5))
                for _ in range(count)
            ]
        rows.append(row)
    return Dataset.from_list(rows)


def make_tokenizer():
    words = [f"t{topic}w{word}" for topic in range(NUM_TOPICS) for word in range(WORDS_PER_TOPIC)]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def make_plan(dataset, folder):
    return prepare_batch_plan(dataset, folder, surrogate=TfidfSurrogate(dim=32), cluster_size=24)


def backbone_config(dropout=0.0, **changes):
    fields = {
        "vocab_size": len(make_tokenizer()),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "pad_token_id": 0,
    }
    return NomicBertConfig(**fields, **changes)


def make_model(kind="prefix", *, dropout=0.0, dtype="float32", seed=0, context_size=6, **fields):
    """A contextual model without zero weights, in joint or prefix attention, or a plain encoder (`kind="plain"`)."""
    torch.manual_seed(seed)
    if kind == "plain":
        model = AutoModel.from_config(backbone_config(dropout))
    else:
        stage = backbone_config(dropout).to_dict()
        model = CDEModel(
            CDEConfig(
                first_stage_config=stage,
                second_stage_config=stage,
                context_size=context_size,
                num_soft_prompts=2,
                context_attention=kind,
                initializer_range=0.2,
                **{"sequence_dropout_prob": 0.0, **fields},
            )
        )
        for weight in model.parameters():
            if weight.dim() == 2 and not weight.any():
                torch.nn.init.normal_(weight, std=0.2)
    return model.to(getattr(torch, dtype))


def make_trainer(model, output_dir, *, pairs=None, plan=None, callbacks=None, eval_dataset=None, **arguments):
    pairs = make_pairs() if pairs is None else pairs
    plan = plan or make_plan(pairs, Path(output_dir) / "plan")
    arguments = {
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "max_grad_norm": 0.0,
        "max_length": 16,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
        "report_to": "none",
        "temperature": 0.2,
        "filter_margin": 0.0,
        **arguments,
    }
    args = ContextualTrainingArguments(output_dir=str(output_dir), **arguments)
    return ContextualContrastiveTrainer(
        model, args, pairs, plan, make_tokenizer(), callbacks=callbacks, eval_dataset=eval_dataset
    )


class Recorder(TrainerCallback):
    """Keeps the gradients of each step before the optimizer takes it."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients.append(
            {
                name: parameter.grad.clone()
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
        )


class SyncCounter(TrainerCallback):
    """Counts the numbers that `DistributedDataParallel` sends in each step."""

    def __init__(self):
        self.num_sent = 0
        self.num_sent_by_step = []
        self.trainer = None

    def on_train_begin(self, args, state, control, **kwargs):
        wrapped = self.trainer.model_wrapped
        if hasattr(wrapped, "register_comm_hook"):
            wrapped.register_comm_hook(None, self._hook)

    def _hook(self, state, bucket):
        self.num_sent += bucket.buffer().numel()
        return allreduce_hook(None, bucket)

    def on_step_end(self, args, state, control, **kwargs):
        self.num_sent_by_step.append(self.num_sent)
        self.num_sent = 0


@contextmanager
def fault(name):
    """Breaks something that a test must notice."""
    if name is None:
        yield
    elif name == "dropped_mini_batch":
        embed_context = gradient_cache.GradientCache._embed_context

        def dropping(self, step):
            context, passes, random_state = embed_context(self, step)
            return context, passes[:-1], random_state

        with patch.object(gradient_cache.GradientCache, "_embed_context", dropping):
            yield
    elif name == "missing_all_reduce":

        def own_gradient(gradient, sizes, process_index):
            return gradient.split(list(sizes))[process_index]

        with patch.object(gradient_cache, "own_gradient", own_gradient):
            yield
    elif name == "stuck_epoch":
        with patch.object(ClusteredBatchSampler, "set_epoch", lambda self, epoch: None):
            yield
    else:
        raise ValueError(name)


class Killer(TrainerCallback):
    """
    Ends the process as `kill -9` does: between two accumulated batches of a step, or in the middle of saving one.

    Args:
        moment (`str`): `"accumulation"` or `"save"`.
        step (`int`): The step.
    """

    def __init__(self, moment, step):
        self.moment, self.step = moment, step
        if moment == "save":
            write = resumable_trainer.write_manifest

            def write_or_die(folder, run):
                if Path(folder).name == f"checkpoint-{step}":
                    os.kill(os.getpid(), signal.SIGKILL)
                write(folder, run)

            resumable_trainer.write_manifest = write_or_die

    def on_substep_end(self, args, state, control, **kwargs):
        if self.moment == "accumulation" and state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Terminator(TrainerCallback):
    """Sends SIGTERM to one of the processes, during the step after `step`."""

    def __init__(self, process_index, step):
        self.process_index, self.step = process_index, step

    def on_step_begin(self, args, state, control, **kwargs):
        if args.process_index == self.process_index and state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def run(
    output_dir,
    *,
    model=None,
    max_steps=1,
    num_negatives=0,
    fault_name=None,
    plan_folder=None,
    resume=None,
    kill=None,
    terminate=None,
    **arguments,
):
    """Trains a few steps and gives the trainer, the gradients of each step and the numbers sent in each."""
    pairs = make_pairs(num_negatives=num_negatives)
    plan = BatchPlan.load(plan_folder) if plan_folder else None
    recorder, counter = Recorder(), SyncCounter()
    enders = ([Killer(*kill)] if kill else []) + ([Terminator(*terminate)] if terminate else [])
    trainer = make_trainer(
        make_model(**(model or {})),
        output_dir,
        pairs=pairs,
        plan=plan,
        callbacks=[recorder, counter, *enders],
        max_steps=max_steps,
        **arguments,
    )
    counter.trainer = trainer
    with fault(fault_name):
        trainer.train(resume)
    return trainer, recorder, counter


def main():
    cases, output = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    for case in cases:
        name = case.pop("name")
        trainer, recorder, counter = run(output / name, **case)
        ends = gather_object([[trainer.state.global_step, trainer.was_terminated]])
        if trainer.accelerator.is_main_process:
            tensors = {
                f"{step}.{key}": value.contiguous()
                for step, part in enumerate(recorder.gradients)
                for key, value in part.items()
            }
            tensors |= {f"weights.{key}": value.contiguous() for key, value in trainer.model.state_dict().items()}
            save_file(tensors, output / f"{name}.safetensors")
            facts = {
                "ends": ends,
                "num_sent": counter.num_sent_by_step,
                "log": trainer.state.log_history,
                "num_processes": trainer.accelerator.num_processes,
                "num_parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
            }
            (output / f"{name}.json").write_text(json.dumps(facts))
        trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
