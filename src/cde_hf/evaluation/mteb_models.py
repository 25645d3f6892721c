"""Metadata with which mteb's own CDE wrapper loads our checkpoints."""

import json
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers.utils import cached_file

from ..data import NO_PROMPTS, Prompts
from ..modeling import CDEConfig


if TYPE_CHECKING:
    from mteb.models import ModelMeta


def make_model_meta(
    checkpoint: str | Path,
    *,
    num_parameters: int | None = None,
    prompts: Prompts | None = None,
    training_datasets: Iterable[str] = (),
    trust_remote_code: bool = False,
) -> "ModelMeta":
    """
    Describes a checkpoint to mteb, whose `CDEWrapper` runs it with a context sampled from the corpus of each task.

    Args:
        checkpoint (`str` or `Path`):
            Folder or Hub name of a checkpoint that includes its first stage. A folder is `local/` and its name in the
            results.
        num_parameters (`int`, *optional*):
            Number of parameters of both stages.
        prompts (`Prompts`, *optional*):
            Prompts that the model was trained with. Defaults to the prompts saved in the checkpoint.
        training_datasets (`Iterable[str]`, *optional*):
            Names of mteb tasks whose data it was trained on, which mteb marks as not zero-shot.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether mteb may run the code that the checkpoint contains, without which it cannot load it.

    Returns:
        `mteb.models.ModelMeta`: The description, for `mteb.evaluate(meta, tasks)`.
    """
    try:
        from mteb.models import ModelMeta
        from mteb.models.model_implementations.cde_models import CDE_CITATION, CDEWrapper, cde_model_prompts
        from mteb.models.model_meta import ScoringFunction
    except ImportError as error:
        raise ImportError("Describing a model to mteb needs mteb: `pip install 'cde-hf[mteb]'`.") from error

    if not trust_remote_code:
        raise ValueError(
            f"mteb would run the code that `{checkpoint}` contains. If you trust it, pass `trust_remote_code=True`."
        )
    config = CDEConfig.from_pretrained(checkpoint)
    if not config.has_first_stage:
        raise ValueError(
            f"`{checkpoint}` was saved without its first stage, which mteb needs to read the context of each task. "
            "Use the checkpoint that it was made from."
        )
    path = Path(checkpoint)
    prompts = prompts or _saved_prompts(checkpoint)
    trained_with = (prompts.classification, prompts.clustering)
    task_prompts = {task: prompt for task, prompt in cde_model_prompts.items() if prompt in trained_with}
    task_prompts |= {"query": prompts.query, "document": prompts.document}

    def load(_name: str, revision: str | None = None, **kwargs: Any) -> CDEWrapper:
        return CDEWrapper(str(checkpoint), revision=None if path.is_dir() else revision, **kwargs)

    return ModelMeta(
        loader=load,
        loader_kwargs={"model_prompts": task_prompts, "trust_remote_code": True},
        name=f"local/{path.name}" if path.is_dir() else str(checkpoint),
        revision="main",
        release_date=None,
        languages=["eng-Latn"],
        n_parameters=num_parameters,
        memory_usage_mb=None,
        max_tokens=None,
        embed_dim=config.hidden_size,
        license=None,
        open_weights=True,
        public_training_code=None,
        public_training_data=None,
        framework=["Sentence Transformers", "safetensors", "Transformers"],
        similarity_fn_name=ScoringFunction.COSINE,
        use_instructions=True,
        training_datasets=set(training_datasets),
        citation=CDE_CITATION,
    )


def _saved_prompts(checkpoint: str | Path) -> Prompts:
    settings_file = cached_file(checkpoint, "config_sentence_transformers.json")
    saved = json.loads(Path(cast(str, settings_file)).read_text(encoding="utf-8"))["prompts"]
    names = {field.name for field in fields(Prompts)}
    return replace(NO_PROMPTS, **{name: prompt for name, prompt in saved.items() if name in names})


__all__ = ["make_model_meta"]
