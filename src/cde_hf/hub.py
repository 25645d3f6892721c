"""Checkpoints that anybody can load: weights, tokenizer, the code files and what sentence-transformers needs."""

import copy
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_relative_import_files

from .data import Prompts
from .modeling import CDEModel, CorpusContext
from .modeling.backbones import longest_text


# What a reader opens first is written last.
_READ_FIRST = ("config.json", "modules.json")

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

    Files of an older checkpoint in the folder are replaced when the new ones are whole; other files stay.

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
            Number of tokens that sentence-transformers reads of a text; fewer if the encoder has no more positions.
        context (`CorpusContext`, *optional*):
            A context to save inside of the checkpoint, whose plain `encode` is then contextual.
    """
    from .modeling import sentence_transformers_cde  # here, because sentence-transformers takes seconds to import

    prompts = prompts or Prompts()
    max_length = min(max_length, longest_text(model.second_stage_model.backbone))
    module = sentence_transformers_cde.CDETransformer(
        model, tokenizer, max_seq_length=max_length, document_prompt=prompts.document, context=context
    )
    with _updating(Path(folder)) as new_folder:
        module.save(str(new_folder))
        _add_code(module, new_folder)
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
    with _updating(Path(folder)) as new_folder:
        if not with_first_stage:
            module.model = _without_first_stage(whole_model)
        try:
            model.save(str(new_folder))
        finally:
            module.model = whole_model
        _add_code(module, new_folder)


def _add_code(module: nn.Module, folder: Path) -> None:
    """Puts the code of a `CDETransformer`, be it the package's or a checkpoint's, beside the weights."""
    code = sys.modules[type(module).__module__]
    for path in (code.__file__, *get_relative_import_files(code.__file__)):
        shutil.copy(path, folder / Path(path).name)
    code.write_modules_file(folder)


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
def _updating(folder: Path) -> Iterator[Path]:
    """
    A new folder, whose files take the place of those of a checkpoint when all went well. Other files stay as they are.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").exists():
        raise ValueError(
            f"`{folder}` holds files but no checkpoint, so nothing is written to it. Give a new folder, or that of an "
            "older checkpoint."
        )
    parent = folder.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{folder.name}.") as temporary:
        new_folder = Path(temporary) / "new"
        new_folder.mkdir()
        yield new_folder
        folder.mkdir(exist_ok=True)
        names = {path.name for path in new_folder.iterdir()}
        # Weights or a context that the new checkpoint does not have would be read along with it.
        for path in [*folder.glob("model*.safetensors*"), *folder.glob("context.safetensors")]:
            if path.name not in names:
                path.unlink()
        for name in sorted(names, key=lambda name: name in _READ_FIRST):
            target = folder / name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(new_folder / name, target)


__all__ = ["save_checkpoint", "save_with_context"]
