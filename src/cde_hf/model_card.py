"""The card of a checkpoint: what it is, how to use it with and without a context, how good it is, and its limits."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open

from .retrieval.evaluation_result import Evaluation


_TEMPLATE = Path(__file__).parent / "model_cards" / "template.md"
_METRICS = ("ndcg@10", "mrr@10", "recall@100")


@dataclass(frozen=True)
class CardFacts:
    """
    What a card says beyond what is in the checkpoint.

    Args:
        base_model (`str`, *optional*):
            Name on the Hub of the encoder that the training started from.
        datasets (`Sequence[str]`, *optional*):
            Names of the training data.
        language (`Sequence[str]`, *optional*):
            Codes of the languages, such as `en`.
        license (`str`, *optional*):
            Its code, such as `apache-2.0`.
        settings (`Mapping[str, Any]`, *optional*):
            Settings of the training.
        evaluation (`Evaluation`, *optional*):
            Scores.
        system (`str`, *optional*):
            Row of the evaluation that is this model. Defaults to the first one with its own context, or else the first
            one that is not BM25.
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
    Writes the text of a checkpoint's card.

    Args:
        folder (`str` or `Path`):
            The checkpoint.
        repo_id (`str`):
            Its name on the Hub, `user/name`.
        facts (`CardFacts`, *optional*):
            What the checkpoint does not know of itself.

    Returns:
        `str`: Markdown, with the metadata at its head.
    """
    folder, facts = Path(folder), facts or CardFacts()
    kind = _kind(folder)
    evaluation = facts.evaluation
    card_data = ModelCardData(
        base_model=facts.base_model,
        datasets=list(facts.datasets) or None,
        language=list(facts.language) or None,
        license=facts.license,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "contextual-document-embeddings", "cde-hf"],
        model_name=repo_id.rpartition("/")[2],
        eval_results=_eval_results(evaluation, facts.system) if evaluation is not None else None,
    )
    tables = [evaluation.to_markdown(metric) for metric in _METRICS] if evaluation is not None else []
    card = ModelCard.from_template(
        card_data,
        template_path=str(_TEMPLATE),
        title=repo_id.rpartition("/")[2],
        repo_id=repo_id,
        kind=kind,
        has_context=(folder / "context.safetensors").exists(),
        facts=_facts_of(folder, kind),
        settings=dict(facts.settings),
        scores="\n".join(tables),
        context_size=evaluation.context_size if evaluation is not None else None,
        seed=evaluation.seed if evaluation is not None else None,
    )
    return str(card)


def _kind(folder: Path) -> str:
    modules_file = folder / "modules.json"
    if not modules_file.exists():
        raise FileNotFoundError(
            f"`{folder}` has no `modules.json`, so it is no checkpoint that sentence-transformers opens. Save the "
            "model with `save_checkpoint`, `save_with_context` or `model.save`."
        )
    kinds = {module["type"].rpartition(".")[2] for module in json.loads(modules_file.read_text(encoding="utf-8"))}
    for name, kind in (("CDETransformer", "cde"), ("CDEOnnxTransformer", "onnx"), ("FrequencyPooling", "frequency")):
        if name in kinds:
            return kind
    raise ValueError(
        f"`{folder}` is a plain sentence-transformers model, with the modules {sorted(kinds)}. Publish it with its "
        "own `push_to_hub`, or make it contextual with `contextualize` first."
    )


def _facts_of(folder: Path, kind: str) -> dict[str, Any]:
    """What the files of the checkpoint say, by names that a reader understands."""
    if kind == "onnx":
        settings = json.loads((folder / "sentence_transformers_onnx_config.json").read_text(encoding="utf-8"))
        return {"dimensions": settings["embedding_dimension"], "tokens read of a text": settings["max_seq_length"]}
    found: dict[str, Any] = {"parameters": f"{_num_parameters(folder):,}"}
    if kind != "cde":
        return found
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "sentence_transformers_cde_config.json").read_text(encoding="utf-8"))
    first, second = config["first_stage_config"], config["second_stage_config"]
    return {
        **found,
        "first stage": _stage(first) if config.get("has_first_stage", True) else "left out",
        "second stage": _stage(second),
        "dimensions": _dimensions(second.get("hidden_size", second.get("dim")), config.get("lexical_size", 0)),
        "context documents": config["context_size"],
        "context attention": config["context_attention"],
        "pooling": config["pooling"],
        "tokens read of a text": settings["max_seq_length"],
        "context saved inside": "yes" if (folder / "context.safetensors").exists() else "no",
    }


def _dimensions(dense: int, lexical: int) -> str:
    return f"{dense + lexical}, the last {lexical} of them a sketch of the words" if lexical else str(dense)


def _stage(config: Mapping[str, Any]) -> str:
    return f"{config['model_type']}, {config.get('num_hidden_layers', config.get('n_layers'))} layers"


def _num_parameters(folder: Path) -> int:
    count = 0
    for path in folder.rglob("model*.safetensors"):
        if path.relative_to(folder).parts[0].startswith("checkpoint-"):  # a copy, from the time of training
            continue
        with safe_open(path, "pt") as file:
            names = file.keys()
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    return count


def _eval_results(evaluation: Evaluation, system: str | None) -> list[EvalResult]:
    if system is None:
        candidates = [name for name in evaluation.systems if name != "BM25"]
        system = next((name for name in candidates if name.endswith("own context")), next(iter(candidates), None))
    if system not in evaluation.systems:
        raise ValueError(
            f"There is no system `{system}` in the evaluation. Use one of {', '.join(evaluation.systems)}."
        )
    return [
        EvalResult(
            task_type="information-retrieval",
            dataset_type=name,
            dataset_name=name,
            metric_type=metric,
            metric_name=f"{metric}, {system}",
            metric_value=round(100 * evaluation.mean(system, retrieval_set=name, metric=metric), 2),
        )
        for name in evaluation.sets
        for metric in _METRICS
    ]


__all__ = ["CardFacts", "make_model_card"]
