"""The model card of a checkpoint: what it is, how to use it, its scores and its limits."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open

from .evaluation.metrics import METRICS
from .evaluation.result import Evaluation, Row


_TEMPLATE = Path(__file__).parent / "model_cards" / "template.md"
_TAG = "contextual-document-embeddings"
_KINDS = {
    "CDETransformer": "cde",
    "OnnxTransformer": "onnx",
    "FrequencyPooling": "contextualized",
    "CorpusPart": "contextualized",
}
_LOCAL_PATH = re.compile(r"""(?:^|[\s|"'`(\[])((?:/|~/|[A-Za-z]:\\)[\w.][^\s|"'`]*)""")


@dataclass(frozen=True)
class CardFacts:
    """
    What a model card says beyond what the checkpoint shows.

    Args:
        base_model (`str`, *optional*):
            Hub name of the encoder that training started from.
        datasets (`Sequence[str]`, *optional*):
            Names of the training datasets.
        language (`Sequence[str]`, *optional*):
            Language codes, such as `en`.
        license (`str`, *optional*):
            License code, such as `apache-2.0`.
        settings (`Mapping[str, Any]`, *optional*):
            Training settings.
        evaluation (`Evaluation`, *optional*):
            Scores.
        system (`str`, *optional*):
            Name of the system in the evaluation that is this model. The metadata get its scores in its own context, or
            the scores of its first row if it has no such row. Defaults to the system with the model's name. If there
            is none, it is the last system with its own context; for a biencoder, the last that takes no context.
    """

    base_model: str | None = None
    datasets: Sequence[str] = ()
    language: Sequence[str] = ()
    license: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    system: str | None = None


def make_model_card(folder: str | Path, repo_id: str, facts: CardFacts | None = None) -> str:
    """
    Makes the model card of a checkpoint.

    Args:
        folder (`str` or `Path`):
            Folder of the checkpoint.
        repo_id (`str`):
            Name of the model on the Hub, `user/name`.
        facts (`CardFacts`, *optional*):
            What the card says beyond what the checkpoint shows.

    Returns:
        `str`: Markdown that begins with the metadata.
    """
    folder, facts = Path(folder), facts or CardFacts()
    if facts.base_model is not None and not is_hub_name(facts.base_model):
        raise ValueError(f"`base_model` must be a name on the Hub, got the local path `{facts.base_model}`.")
    kind, evaluation, title = _kind(folder), facts.evaluation, repo_id.rpartition("/")[2]
    card_data = ModelCardData(
        base_model=facts.base_model,
        datasets=list(facts.datasets) or None,
        language=list(facts.language) or None,
        license=facts.license,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", *([] if kind == "biencoder" else [_TAG]), "cde-hf"],
        model_name=title,
        eval_results=_eval_results(evaluation, facts.system, title, kind) if evaluation is not None else None,
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(_TEMPLATE),
        title=title,
        repo_id=repo_id,
        kind=kind,
        has_context=any(folder.rglob("context.safetensors")),
        has_corpus_part=any(folder.glob("*_CorpusPart")),
        facts=_facts_of(folder, kind),
        settings=facts.settings,
        evaluation=evaluation,
        metrics=METRICS,
    )
    local_path = _LOCAL_PATH.search(str(card))
    if local_path is not None:
        raise ValueError(f"The card would show the local path `{local_path[1]}`. Give a name instead.")
    return str(card)


def read_json(path: Path) -> Any:
    """Reads a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Reads the list of modules of a sentence-transformers model."""
    path = folder / "modules.json"
    if not path.exists():
        raise FileNotFoundError(
            f"`{folder}` has no `modules.json`, so sentence-transformers cannot load it. Save the model with "
            "`save_checkpoint`, `save_with_context` or `model.save`."
        )
    return read_json(path)


def is_hub_name(text: str) -> bool:
    """Returns whether a text has the form of a name on the Hub."""
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", text) is not None


def _kind(folder: Path) -> str:
    modules = read_modules(folder)
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    for name, kind in _KINDS.items():
        if name in kinds:
            return kind
    if kinds[0] == "Transformer" and not modules[0]["path"]:
        return "biencoder"
    raise ValueError(
        f"`{folder}` is a sentence-transformers model with the modules {kinds}, but only models that begin with a "
        "`Transformer` can be published here. Use the model's own `push_to_hub`."
    )


def _facts_of(folder: Path, kind: str) -> dict[str, Any]:
    """Reads facts about the model from the checkpoint, under names that a reader understands."""
    if kind == "onnx":
        settings = read_json(folder / "sentence_transformers_onnx_config.json")
        return {"dimensions": settings["embedding_dimension"], "tokens read of a text": settings["max_seq_length"]}
    found: dict[str, Any] = {"parameters": f"{_num_parameters(folder):,}"}
    if kind != "cde":
        return found
    config = read_json(folder / "config.json")
    settings = read_json(folder / "sentence_transformers_cde_config.json")
    first, second = config["first_stage_config"], config["second_stage_config"]
    return {
        **found,
        "first stage": _stage(first) if config.get("has_first_stage", True) else "not included",
        "second stage": _stage(second),
        "dimensions": second.get("hidden_size", second.get("dim")),
        "context documents": config["context_size"],
        "context attention": config["context_attention"],
        "pooling": config["pooling"],
        "tokens read of a text": settings["max_seq_length"],
        "context saved inside": "yes" if (folder / "context.safetensors").exists() else "no",
    }


def _stage(config: Mapping[str, Any]) -> str:
    return f"{config['model_type']}, {config.get('num_hidden_layers', config.get('n_layers'))} layers"


def _num_parameters(folder: Path) -> int:
    count = 0
    for path in (*folder.glob("model*.safetensors"), *folder.glob("[0-9]_*/model.safetensors")):
        with safe_open(path, "pt") as file:
            names = file.keys()
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    return count


def _row_of_model(evaluation: Evaluation, system: str | None, title: str, kind: str) -> Row:
    """Chooses the row with the scores of the model itself. Other rows are other systems and other contexts."""
    names = [row.system for row in evaluation.rows]
    if system is None:
        context = None if kind == "biencoder" else "own"
        # The last system is the model, behind which is only its hybrid.
        models = [row for row in evaluation.rows if row.system != "BM25" and not row.system.endswith(" hybrid")]
        candidates = [row for row in models if row.context == context] or models
        system = title if title in names or not candidates else candidates[-1].system
    if system not in names:
        known = ", ".join(dict.fromkeys(names))
        raise ValueError(f"There is no system `{system}` in the evaluation. Use one of {known}.")
    own = Row(system, "own")
    return own if own in evaluation.rows else evaluation.rows[names.index(system)]


def _eval_results(evaluation: Evaluation, system: str | None, title: str, kind: str) -> list[EvalResult]:
    row = _row_of_model(evaluation, system, title, kind)
    return [
        EvalResult(
            task_type="information-retrieval",
            dataset_type=name,
            dataset_name=name,
            metric_type=metric,
            metric_name=f"{metric}, {row}",
            metric_value=round(100 * evaluation.mean(row, retrieval_set=name, metric=metric), 2),
        )
        for name in evaluation.sets
        for metric in METRICS
    ]


__all__ = [
    "CardFacts",
    "is_hub_name",
    "make_model_card",
    "read_json",
    "read_modules",
]
