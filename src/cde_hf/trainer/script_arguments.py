"""The arguments of a training run from the command line, and their parser."""

import json
from argparse import SUPPRESS, Action, ArgumentDefaultsHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml
from datasets import Dataset
from transformers import HfArgumentParser

from ..batching import BatchPlan, SentenceTransformerSurrogate, TfidfSurrogate, prepare_batch_plan
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
from ..model_names import model_path, named_model
from ..modeling import CDEConfig
from .arguments import ContextualTrainingArguments
from .models import DEFAULT_POOLING, Architecture, find_prompts
from .sizes import CHOSEN, STRATEGY


_MIN_HELD_OUT, _MAX_HELD_OUT = 10, 250
_MANY_QUERIES = 1_000_000  # such data has test sets of its own, and is slow to split


@dataclass
class ScriptArguments:
    """The model to train and the data to train it on. Each argument is described in its help."""

    data: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Pairs: tables (JSONL, JSON, CSV, TSV, Parquet), folders, Hub names, or YAML lists of sources. "
            "`docstrings` means the docstrings of installed libraries."
        },
    )
    columns: list[str] | None = field(
        default=None,
        metadata={"help": "Column names of pairs, such as query=question document=answer domain=subdomain."},
    )
    corpus: str | None = field(
        default=None,
        metadata={
            "help": "Corpus to search: a table, text file or folder. Held-out queries search it, and the table at the "
            "end shows what its context adds."
        },
    )
    text_column: str | None = field(default=None, metadata={"help": "Column of the corpus that has the texts."})
    held_out: int | None = field(
        default=None,
        metadata={
            "help": "Number of queries to hold out of the pairs, to choose the best state of the model and test it. "
            "Default: a tenth, at most 250, or none if that is below 10 or there are over a million. None are held "
            "out with `--eval-data`, `--plan` or a strategy of your own, such as `--save-strategy epoch`."
        },
    )
    model: str = field(
        default="minilm",
        metadata={
            "help": "Folder or Hub name of a CDE checkpoint, or of an encoder to build a new contextual model around. "
            "`minilm` is the all-MiniLM-L6-v2 of an installed package."
        },
    )
    architecture: Architecture | None = field(
        default=None,
        metadata={
            "help": "Whether to train a contextual model or a plain encoder. Default: what the model is. `contextual` "
            "builds a contextual model around an encoder."
        },
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
    query_prompt: str | None = field(
        default=None, metadata={"help": "Text to put before every query. Default: the model's own prompt."}
    )
    document_prompt: str | None = field(
        default=None, metadata={"help": "Text to put before every document. Default: the model's own prompt."}
    )
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
    overwrite: bool = field(
        default=False, metadata={"help": "Whether to replace model, checkpoints and plan of an earlier run."}
    )

    given: frozenset[str] = field(default=frozenset(), init=False)  # names of all arguments that the user gave

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError(
                "There is nothing to train on. Give pairs: `--data pairs.jsonl --output-dir my-model`, lines such as "
                '{"query": "Who barks?", "document": "A dog barks."}. `--data docstrings` needs no file of yours. '
                "`--help` shows the arguments."
            )
        check_counts(
            context_size=self.context_size, max_pairs=self.max_pairs, first_stage_layers=self.first_stage_layers
        )
        check_positive(frequency_scale=self.frequency_scale)
        if self.held_out is not None and self.held_out < 0:
            raise ValueError(f"`held_out` must be a number of queries, or 0 for none, got {self.held_out}.")
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

    def num_held_out(self, num_queries: int) -> int:
        """Number of queries to hold out of the pairs."""
        if self.eval_data is not None or self.plan is not None or self.given & STRATEGY:
            if self.held_out:
                raise ValueError(
                    f"`held_out={self.held_out}` was given with `eval_data`, `plan` or a strategy for evaluations, "
                    "with which no queries are held out. Leave one of them out."
                )
            return 0
        if self.held_out is not None:
            return self.held_out
        num_held_out = min(_MAX_HELD_OUT, num_queries // 10)
        return num_held_out if num_held_out >= _MIN_HELD_OUT and num_queries <= _MANY_QUERIES else 0

    def load_prompts(self) -> Prompts:
        """The prompts to train with: those that were given, or the model's own."""
        own = find_prompts(self.model)
        query, document = self.query_prompt, self.document_prompt
        return Prompts(own.query if query is None else query, own.document if document is None else document)

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
    "model and data": [each.name for each in fields(ScriptArguments) if each.name not in ("overwrite", "given")],
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
        "overwrite",
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


# The arguments of `--help`. `--help-all` shows all.
FIRST_ARGUMENTS = (
    "data",
    "columns",
    "corpus",
    "model",
    "architecture",
    "eval_data",
    "gather_across_devices",
    "per_device_train_batch_size",
    "max_length",
    "bf16",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "seed",
    "output_dir",
    "overwrite",
    "resume_from_checkpoint",
    "eval_strategy",
    "save_steps",
    "use_cpu",
)


class _HelpFormatter(ArgumentDefaultsHelpFormatter):
    """Shows one spelling of each argument, and all defaults except `None`, which the help text explains."""

    def _format_action_invocation(self, action: Action) -> str:
        metavar = self._get_default_metavar_for_optional(action)
        return f"{action.option_strings[-1]} {self._format_args(action, metavar)}".strip()

    def _get_help_string(self, action: Action) -> str | None:
        if action.dest in CHOSEN:
            return f"{action.help} (default: chosen for pairs, model and machine)"
        return action.help if action.default in (None, []) else super()._get_help_string(action)


class TrainingArgumentParser(HfArgumentParser):
    """
    Parses all arguments of a run. `--help` groups them by what they control.

    Args:
        shows_all (`bool`, *optional*, defaults to `False`):
            Whether the help shows more than the arguments that matter first.
        kwargs:
            Arguments of `argparse.ArgumentParser`.
    """

    dataclass_types: list[Any]

    def __init__(self, *, shows_all: bool = False, **kwargs: Any):
        super().__init__(
            [],
            usage="%(prog)s [CONFIGURATION.yaml] [--argument value ...]",
            description="Trains a contextual embedding model, or a biencoder, on pairs of query and document. The "
            "first argument may be a YAML file of arguments. Arguments on the command line override it. Ctrl-C saves "
            "a checkpoint. On several GPUs: accelerate launch examples/train.py ...",
            epilog="example: cde-hf train --data pairs.jsonl --corpus corpus.jsonl --output-dir my-model",
            formatter_class=_HelpFormatter,
            allow_abbrev=False,  # each argument has two spellings
            **kwargs,
        )
        self.add_argument("--help-all", action="help", help="show all arguments, also those of TrainingArguments")
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
        for action in self._actions:
            if not shows_all and action.dest not in ("help", "help_all", *FIRST_ARGUMENTS):
                action.help = SUPPRESS

    def parse(self, arguments: Sequence[str]) -> tuple[ScriptArguments, ContextualTrainingArguments]:
        """Parses a command line. Its first argument may be a YAML file of arguments."""
        arguments = list(arguments)
        given = {part[2:].partition("=")[0].replace("-", "_") for part in arguments if part.startswith("--")}
        if arguments and arguments[0].endswith((".yaml", ".yml")):
            path = arguments.pop(0)
            values = _read_yaml(path)
            if not isinstance(values, dict):
                raise ValueError(f"`{path}` holds no arguments, but must have lines such as `learning_rate: 0.0001`.")
            actions = {action.dest: action for action in self._actions}
            unknown = sorted(map(str, set(values) - set(actions)))
            if unknown:
                raise ValueError(f"The configuration has unknown arguments: {', '.join(unknown)}. See `--help`.")
            self.set_defaults(**values)
            given |= values.keys()
        try:
            *parsed, rest = self.parse_args_into_dataclasses(
                arguments, return_remaining_strings=True, look_for_args_file=False
            )
        except json.JSONDecodeError as error:
            raise ValueError(f"`{error.doc}` is not valid JSON ({error}). Put it into single quotes.") from error
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)} (see --help-all)")
        given |= {name.removeprefix("no_") for name in given}  # such as `--no-filter-false-negatives`
        parsed[0].given = frozenset(given)
        return parsed[0], parsed[1]


def _make_surrogate(name: str) -> TfidfSurrogate | SentenceTransformerSurrogate:
    if name == "tfidf":
        return TfidfSurrogate()
    with named_model(name):
        return SentenceTransformerSurrogate(model_path(name))


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


__all__ = ["ScriptArguments", "TrainingArgumentParser"]
