"""Checkpoints that anybody can load: weights, tokenizer, the code files and what sentence-transformers needs."""

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_relative_import_files

from .data import Prompts
from .modeling import CDEModel, CorpusContext


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def save_checkpoint(
    model: CDEModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    prompts: Prompts | None = None,
    max_length: int = 512,
    context: CorpusContext | None = None,
) -> None:
    """
    Saves a model so that `AutoModel` and `SentenceTransformer` load it where this package is not installed.

    The folder replaces an older one only when it is whole.

    Args:
        model (`CDEModel`):
            The model.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        folder (`str` or `Path`):
            Folder to write.
        prompts (`Prompts`, *optional*):
            Texts to put before queries and documents. Defaults to the paper's.
        max_length (`int`, *optional*, defaults to `512`):
            Number of tokens that sentence-transformers reads of a text.
        context (`CorpusContext`, *optional*):
            A context to save inside of the checkpoint, whose plain `encode` is then contextual.
    """
    from .modeling import sentence_transformers_cde  # here, because sentence-transformers takes seconds to import

    prompts = prompts or Prompts()
    module = sentence_transformers_cde.CDETransformer(
        model, tokenizer, max_seq_length=max_length, document_prompt=prompts.document, context=context
    )
    with _replacing(Path(folder)) as new_folder:
        module.save(str(new_folder))
        code_file = sentence_transformers_cde.__file__
        for path in (code_file, *get_relative_import_files(code_file)):
            shutil.copy(path, new_folder / Path(path).name)
        sentence_transformers_cde.write_modules_file(new_folder)
        settings = {
            "model_type": "SentenceTransformer",
            "prompts": prompts.for_sentence_transformers(),
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        }
        (new_folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def save_with_context(model: "SentenceTransformer", folder: str | Path, *, with_first_stage: bool = True) -> None:
    """
    Saves a sentence-transformers model with the context that was set: a model of one corpus, for plain `encode`.

    Args:
        model (`SentenceTransformer`):
            A contextual model after `model[0].set_context(documents)`.
        folder (`str` or `Path`):
            Folder to write.
        with_first_stage (`bool`, *optional*, defaults to `True`):
            Whether the checkpoint can read another context later. Without, it is about half as large.
    """
    module = model[0]
    if getattr(module, "context", None) is None:
        raise ValueError("The model has no context to save. Call `model[0].set_context(documents)` first.")
    whole_model = module.model
    with _replacing(Path(folder)) as new_folder:
        if not with_first_stage:
            module.model = _without_first_stage(whole_model)
        try:
            model.save(str(new_folder))
        finally:
            module.model = whole_model


def _without_first_stage(model: CDEModel) -> CDEModel:
    config = copy.deepcopy(model.config)
    config.has_first_stage = False
    with torch.device("meta"):
        slim = type(model)(config)
    weights = {
        name: weight for name, weight in model.state_dict().items() if not name.startswith("first_stage_model.")
    }
    slim.load_state_dict(weights, assign=True)
    return slim


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of an old one when all went well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new_folder, old_folder = Path(temporary) / "new", Path(temporary) / "old"
        new_folder.mkdir()
        yield new_folder
        if folder.exists():
            os.replace(folder, old_folder)
        os.replace(new_folder, folder)


__all__ = ["save_checkpoint", "save_with_context"]
