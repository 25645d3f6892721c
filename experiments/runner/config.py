"""What a training run is, and the hash of everything that its weights depend on."""

import ast
import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import cde_hf
from cde_hf.trainer.collator import ContextSource


Architecture = Literal["biencoder", "soft_prompt", "joint", "prefix"]

NUM_SOFT_PROMPTS = 8
NEW_LAYERS = r"stage_model\.(?!backbone)"  # names of the parameters outside of the backbones

# The code that makes the weights. Not `data`, because the pairs themselves are hashed, and not what only starts, shows
# or scores a run: a new evaluation must not train anything again.
_SOURCE_FOLDERS = ("modeling", "batching", "trainer")
_IDLE_FILES = (
    "batching/inspection.py",
    "batching/statistics.py",
    "trainer/callbacks.py",
    "trainer/evaluation.py",
    "trainer/script.py",
    "trainer/step_metrics.py",
)


@dataclass(frozen=True)
class RunConfig:
    """
    One training run.

    Args:
        architecture (`str`, *optional*, defaults to `"prefix"`):
            `"biencoder"`; `"joint"` or `"prefix"`, contextual models in that attention; or `"soft_prompt"`, a control
            that has a learned vector wherever a contextual model has a context document.
        pooling (`str`, *optional*, defaults to `"mean"`):
            `"mean"` or `"context_frequency"`, of a contextual model.
        frequency_scale (`float`, *optional*, defaults to `0.2`):
            Scale of the frequencies in the pooling.
        batches (`str`, *optional*, defaults to `"cluster"`):
            What a batch is filled from: `"cluster"`, `"domain"` or `"random"`.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the new weights, of dropout, of the batches and of their contexts.
        domains (`tuple[str, ...]`, *optional*, defaults to `()`):
            Files of the folder `train` of the data, by name.
        pairs_per_domain (`int`, *optional*):
            Pairs to draw of each file. Defaults to all.
        backbone (`str`, *optional*, defaults to `"minilm"`):
            Encoder to begin with.
        layers (`int`, *optional*):
            Layers to keep of it, from the first. Defaults to all.
        first_stage_layers (`int`, *optional*):
            Layers to keep of these in the first stage. Defaults to all.
        context_in_token_space (`bool`, *optional*, defaults to `True`):
            Whether a contextual model's context vectors lie in the space of its token embeddings.
        context_size (`int`, *optional*, defaults to `64`):
            Context documents.
        context_source (`str`, *optional*, defaults to `"batch"`):
            Where the context of a step comes from: `"cluster"`, `"batch"`, `"domain"` or `"random"`.
        context_max_length (`int`, *optional*):
            Tokens to read of a context document. Defaults to `max_length`.
        cluster_size (`int`, *optional*, defaults to `64`):
            Wanted pairs in a cluster.
        cluster_order (`str`, *optional*, defaults to `"tour"`):
            Which clusters fill a batch together: `"tour"` or `"random"`.
        filters (`bool`, *optional*, defaults to `True`):
            Whether false negatives are left out.
        filter_margin (`float`, *optional*, defaults to `0.0`):
            Margin of the filter.
        filter_relative_margin (`float`, *optional*):
            Margin as a share of the positive's score, in place of `filter_margin`.
        mined_negatives (`int`, *optional*, defaults to `0`):
            Hard negatives of each pair, mined from its domain by the surrogate.
        batch_size (`int`, *optional*, defaults to `64`):
            Pairs in a batch.
        steps (`int`, *optional*, defaults to `120`):
            Steps.
        max_length (`int`, *optional*, defaults to `48`):
            Tokens to read of a text.
        learning_rate (`float`, *optional*, defaults to `5e-5`):
            Peak of the learning rate.
        learning_rate_mapping (`tuple[tuple[str, float], ...]`, *optional*):
            Patterns of parameter names and the learning rates of these parameters. Defaults to `5e-4` for all layers
            but the backbones. A biencoder has no such layers and ignores it.
        warmup_steps (`int`, *optional*, defaults to `10`):
            Steps of warm-up.
    """

    architecture: Architecture = "prefix"
    pooling: Literal["mean", "context_frequency"] = "mean"
    frequency_scale: float = 0.2
    batches: Literal["cluster", "domain", "random"] = "cluster"
    seed: int = 0
    domains: tuple[str, ...] = ()
    pairs_per_domain: int | None = None
    backbone: str = "minilm"
    layers: int | None = None
    first_stage_layers: int | None = None
    context_in_token_space: bool = True
    context_size: int = 64
    context_source: ContextSource = "batch"
    context_max_length: int | None = None
    cluster_size: int = 64
    cluster_order: Literal["tour", "random"] = "tour"
    filters: bool = True
    filter_margin: float = 0.0
    filter_relative_margin: float | None = None
    mined_negatives: int = 0
    batch_size: int = 64
    steps: int = 120
    max_length: int = 48
    learning_rate: float = 5e-5
    learning_rate_mapping: tuple[tuple[str, float], ...] = ((NEW_LAYERS, 5e-4),)
    warmup_steps: int = 10

    def __post_init__(self):
        if self.architecture not in get_args(Architecture):
            raise ValueError(
                f"`architecture` is `{self.architecture}`, but must be one of {', '.join(get_args(Architecture))}."
            )
        if self.pooling != "mean" and not self.has_context:
            raise ValueError(
                f"`pooling='{self.pooling}'` needs a model with a context, got `architecture='{self.architecture}'`. "
                "Use `pooling='mean'`."
            )

    @property
    def has_context(self) -> bool:
        """Whether the model reads a context."""
        return self.architecture in ("joint", "prefix")

    def identity(self, data_fingerprint: str, backbone_fingerprint: str) -> dict[str, Any]:
        """Everything that the weights depend on."""
        return {
            **asdict(self),
            "domains": list(self.domains),
            "data_fingerprint": data_fingerprint,
            "backbone_fingerprint": backbone_fingerprint,
            "sources": source_fingerprint(_SOURCE_FOLDERS),
            "torch": version("torch"),
            "transformers": version("transformers"),
        }


def hash_of(identity: Any) -> str:
    """A short name for a thing that JSON can write."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@cache
def source_fingerprint(sources: tuple[str, ...]) -> str:
    """Hash of what the code in some folders and files of the package does."""
    package = Path(cde_hf.__file__).parent
    patterns = (source if source.endswith(".py") else f"{source}/*.py" for source in sources)
    paths = [path for pattern in patterns for path in sorted(package.glob(pattern))]
    return hash_of(
        [meaning_of(path.read_text()) for path in paths if path.relative_to(package).as_posix() not in _IDLE_FILES]
    )


def meaning_of(source: str) -> str:
    """Python code without its comments, its docstrings and its layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def file_fingerprint(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
