"""A training run from the command line: pairs, batch plan, model, training, checkpoint."""

import sys
from argparse import Action, ArgumentDefaultsHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml
from accelerate import PartialState
from datasets import Dataset
from transformers import HfArgumentParser
from transformers.utils import logging

from ..batching import BatchPlan, SentenceTransformerSurrogate, TfidfSurrogate, prepare_batch_plan
from ..batching.batch_plan import BATCH_PLAN
from ..batching.preparation import DEFAULT_CLUSTER_SIZE
from ..data import (
    PairSource,
    Prompts,
    RetrievalSet,
    check_counts,
    check_positive,
    docstring_split,
    load_retrieval_set,
    load_sources,
    parse_columns,
)
from ..data.prompts import SEARCH_DOCUMENT, SEARCH_QUERY
from ..modeling import CDEConfig
from ..processes import process_state
from ..saving import model_path
from .arguments import ContextualTrainingArguments
from .checkpoints import locked_output
from .models import DEFAULT_POOLING, Architecture, load_model
from .trainer import ContextualContrastiveTrainer


logger = logging.get_logger(__name__)


@dataclass
class ScriptArguments:
    """The model to train and the data to train it on. Each argument is described in its help."""

    data: list[str] = field(
        metadata={
            "help": "Pairs: tables (JSONL, JSON, CSV, TSV, Parquet), folders, Hub names, or YAML lists of sources. "
            "`docstrings` means the docstrings of installed libraries."
        },
    )
    columns: list[str] | None = field(
        default=None,
        metadata={"help": "Column names of pairs, such as query=question document=answer domain=subdomain."},
    )
    model: str = field(
        default="minilm",
        metadata={
            "help": "Folder or Hub name of a CDE checkpoint, or of an encoder to build a new contextual model around. "
            "`minilm` is the all-MiniLM-L6-v2 of an installed package."
        },
    )
    architecture: Architecture = field(
        default="contextual", metadata={"help": "Whether to train a contextual model or a plain encoder."}
    )
    context_attention: Literal["prefix", "joint"] = field(
        default=CDEConfig.context_attention,
        metadata={"help": "How texts attend to the context, in a new contextual model."},
    )
    context_size: int = field(
        default=CDEConfig.context_size, metadata={"help": "Number of context documents of a new contextual model."}
    )
    pooling: Literal["context_frequency", "mean"] = field(
        default=DEFAULT_POOLING,
        metadata={"help": "Pooling of a new contextual model at inference. Training always uses the mean."},
    )
    frequency_scale: float = field(
        default=CDEConfig.frequency_scale,
        metadata={"help": "Document frequency at which a token has weight 0.5 in the pooling of a new model."},
    )
    first_stage_layers: int | None = field(
        default=None, metadata={"help": "Number of encoder layers in the first stage of a new model. Default: all."}
    )
    query_prompt: str = field(default=SEARCH_QUERY, metadata={"help": "Text to put before every query."})
    document_prompt: str = field(default=SEARCH_DOCUMENT, metadata={"help": "Text to put before every document."})
    max_pairs: int | None = field(default=None, metadata={"help": "Number of pairs to sample. Default: all."})
    plan: str | None = field(
        default=None,
        metadata={"help": "Folder of the batch plan, which is made if missing. Default: OUTPUT_DIR/plan."},
    )
    surrogate: str = field(
        default="tfidf",
        metadata={"help": "Model that embeds pairs for clustering: `tfidf`, `minilm`, a folder or a Hub name."},
    )
    filter_surrogate: str | None = field(
        default=None, metadata={"help": "Model of the false-negative filter. Default: the surrogate."}
    )
    cluster_size: int = field(default=DEFAULT_CLUSTER_SIZE, metadata={"help": "Target cluster size, in pairs."})
    eval_data: list[str] | None = field(
        default=None,
        metadata={
            "help": "Folders of retrieval sets in BEIR layout or files of pairs to evaluate on, or `docstrings` for "
            "held-out libraries."
        },
    )

    def __post_init__(self) -> None:
        check_counts(
            context_size=self.context_size, max_pairs=self.max_pairs, first_stage_layers=self.first_stage_layers
        )
        check_positive(frequency_scale=self.frequency_scale)
        if self.cluster_size < 2:
            raise ValueError(f"`cluster_size` must be at least 2, got {self.cluster_size}.")

    def load_pairs(self, seed: int) -> Dataset:
        """Loads the training pairs."""
        if self.data == ["docstrings"]:
            pairs, _ = docstring_split()
        else:
            columns = parse_columns(self.columns or [])
            pairs = load_sources([source for name in self.data for source in _read_sources(name, columns)])
        if self.max_pairs is not None and self.max_pairs < len(pairs):
            pairs = pairs.shuffle(seed=seed).select(range(self.max_pairs))
        return pairs

    def load_plan(self, pairs: Dataset, output_dir: str) -> BatchPlan:
        """Loads the batch plan, or makes it if it is missing."""
        folder = Path(self.plan) if self.plan is not None else Path(output_dir) / "plan"
        return prepare_batch_plan(
            pairs,
            folder,
            surrogate=_make_surrogate(self.surrogate),
            filter_surrogate=_make_surrogate(self.filter_surrogate) if self.filter_surrogate is not None else None,
            cluster_size=self.cluster_size,
        )

    def load_eval_sets(self) -> list[RetrievalSet] | None:
        """Loads the retrieval sets to evaluate on while training."""
        if self.eval_data is None:
            return None
        if self.eval_data == ["docstrings"]:
            return docstring_split()[1]
        return [load_retrieval_set(folder) for folder in self.eval_data]


ARGUMENT_GROUPS = {
    "model and data": [argument.name for argument in fields(ScriptArguments)],
    "loss": ["temperature", "in_batch_negatives", "gather_across_devices", "matryoshka_dims"],
    "batches": [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "batch_grouping",
        "cluster_order",
        "filter_false_negatives",
        "filter_margin",
        "filter_relative_margin",
        "max_length",
    ],
    "context": ["context_source", "context_max_length"],
    "memory": [
        "mini_batch_size",
        "context_mini_batch_size",
        "mini_batch_num_tokens",
        "gradient_checkpointing",
        "bf16",
        "fp16",
        "torch_compile",
    ],
    "optimizer and length": [
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "learning_rate_mapping",
        "disable_dropout",
        "warmup_steps",
        "lr_scheduler_type",
        "weight_decay",
        "max_grad_norm",
        "optim",
        "seed",
    ],
    "output": [
        "output_dir",
        "resume_from_checkpoint",
        "logging_steps",
        "report_to",
        "eval_strategy",
        "eval_steps",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "push_to_hub",
        "hub_model_id",
    ],
}


class _HelpFormatter(ArgumentDefaultsHelpFormatter):
    """Shows all defaults except `None`, which the help text explains."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class TrainingArgumentParser(HfArgumentParser):
    """Parses all arguments of a run. `--help` groups them by what they control."""

    dataclass_types: list[Any]

    def __init__(self, **kwargs: Any):
        super().__init__(
            [],
            usage="%(prog)s [CONFIGURATION.yaml] [--argument value ...]",
            description="Trains a contextual embedding model, or a biencoder, on pairs of query and document. The "
            "first argument may be a YAML file of arguments. Arguments on the command line override it.",
            epilog="example: accelerate launch examples/train.py --data pairs.jsonl --output_dir model "
            "--mini_batch_size 64 --resume_from_checkpoint auto",
            formatter_class=_HelpFormatter,
            **kwargs,
        )
        self.dataclass_types = [ScriptArguments, ContextualTrainingArguments]
        arguments = {}
        for kind in self.dataclass_types:
            hints = get_type_hints(kind)
            for argument in fields(kind):
                argument.type = hints[argument.name]  # `HfArgumentParser` requires resolved types
                arguments[argument.name] = argument
        rest = [name for name in arguments if not any(name in names for names in ARGUMENT_GROUPS.values())]
        for title, names in {**ARGUMENT_GROUPS, "all other arguments of TrainingArguments": rest}.items():
            group: Any = self.add_argument_group(title)  # a group has `add_argument`, like a parser
            for name in names:
                if arguments[name].init:
                    self._parse_dataclass_field(group, arguments[name])

    def parse(self, arguments: Sequence[str]) -> tuple[ScriptArguments, ContextualTrainingArguments]:
        """Parses a command line. Its first argument may be a YAML file of arguments."""
        arguments = list(arguments)
        if arguments and arguments[0].endswith((".yaml", ".yml")):
            path = arguments.pop(0)
            values = _read_yaml(path)
            if not isinstance(values, dict):
                raise ValueError(f"`{path}` holds no arguments, but must have lines such as `learning_rate: 0.0001`.")
            actions = {action.dest: action for action in self._actions}
            unknown = sorted(map(str, set(values) - set(actions)))
            if unknown:
                raise ValueError(f"The configuration has unknown arguments: {', '.join(unknown)}. See `--help`.")
            for name in values:
                actions[name].required = False
            self.set_defaults(**values)
        parsed: Any = self.parse_args_into_dataclasses(arguments, look_for_args_file=False)
        return parsed


def run_training(arguments: Sequence[str] | None = None) -> None:
    """
    Trains a model by command-line arguments and saves it in `output_dir`.

    Args:
        arguments (`Sequence[str]`, *optional*):
            The arguments. Defaults to the command line of this process.
    """
    state = process_state()
    parser = TrainingArgumentParser(prog="cde-hf train" if arguments is not None else None)
    script, args = parser.parse(sys.argv[1:] if arguments is None else arguments)
    if script.plan is not None:
        BATCH_PLAN.refuse_foreign(script.plan)
    with locked_output(args.output_dir):
        _train(script, args, state)


def _train(script: ScriptArguments, args: ContextualTrainingArguments, state: PartialState) -> None:
    with state.main_process_first():  # the other processes find the pairs in the cache
        pairs = script.load_pairs(args.seed)
    plan = script.load_plan(pairs, args.output_dir)
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
    trainer = ContextualContrastiveTrainer(
        model,
        args,
        pairs,
        plan,
        tokenizer,
        eval_dataset=script.load_eval_sets(),
        prompts=Prompts(script.query_prompt, script.document_prompt),
    )
    trainer.train(args.resume_from_checkpoint)
    if trainer.was_terminated:
        logger.warning(f"Stopped at step {trainer.state.global_step}. Resume with `--resume_from_checkpoint auto`.")
        return
    trainer.save_model()
    if trainer.eval_dataset:
        trainer.evaluate()
    trainer.save_state()


def _make_surrogate(name: str) -> TfidfSurrogate | SentenceTransformerSurrogate:
    return TfidfSurrogate() if name == "tfidf" else SentenceTransformerSurrogate(model_path(name))


def _read_sources(name: str, columns: Mapping[str, str]) -> list[PairSource]:
    if not name.endswith((".yaml", ".yml")):
        return [PairSource(name, columns=columns)]
    try:
        return [PairSource(**entry) for entry in _read_yaml(name)]
    except TypeError as error:
        raise ValueError(
            f"`{name}` must hold a list of sources, each with `source` and if needed `columns`, `domain` and `split` "
            f"({error}). Fix it."
        ) from error


def _read_yaml(path: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"`{path}` is not valid YAML ({' '.join(str(error).split())}). Fix it.") from error


__all__ = ["ScriptArguments", "TrainingArgumentParser", "run_training"]
