"""
Exports a contextual model to ONNX, in a folder that sentence-transformers loads.

1. The second stage is wrapped so that its inputs are tensors: `input_ids`, `attention_mask`, and the context as
   constants or as more inputs.
2. PyTorch exports it with dynamic numbers of texts and tokens.
3. Optionally, the weights of the matrix products are quantised to int8, and activations dynamically.

The first stage is not exported: contexts are encoded with PyTorch.
"""

import copy
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .modeling import Context
from .modeling.second_stage import SecondStage


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.get_logger(__name__)


def export_onnx(
    model: "SentenceTransformer",
    folder: str | os.PathLike,
    *,
    context_as_input: bool = False,
    quantize: bool = False,
) -> None:
    """
    Exports a CDE model and its context to a folder, with the second stage as `model.onnx`.

    `SentenceTransformer(folder, trust_remote_code=True)` loads it if onnxruntime is installed. The graph also runs
    with onnxruntime alone: it takes `input_ids` and `attention_mask` of shape `(batch_size, sequence_length)` and
    returns `sentence_embedding`, not normalised.

    Args:
        model (`SentenceTransformer`):
            A CDE checkpoint after `set_context(model, corpus)`, or saved with its context.
        folder (`str` or `os.PathLike`):
            Folder to create. It must not exist.
        context_as_input (`bool`, *optional*, defaults to `False`):
            Whether the context is an input of the graph, so that it can be changed later, instead of a constant.
        quantize (`bool`, *optional*, defaults to `False`):
            Whether to quantise to int8.
    """
    # Here, because sentence-transformers takes seconds to import.
    from .contextual_models import find_cde_model, get_context
    from .modeling import sentence_transformers_onnx as onnx_module

    _require_packages()
    cde_model = find_cde_model(model)
    if cde_model is None:
        raise TypeError(
            f"Only a CDE checkpoint can be exported, got a model that starts with `{type(model[0]).__name__}`. For "
            "other models use sentence-transformers' own ONNX backend."
        )
    context = get_context(model)
    if context is None:
        raise ValueError("The model has no context to export. Call `set_context(model, corpus)` first.")
    arrays = onnx_module.context_inputs(context)
    config = cde_model.config
    if not config.counts_tokens:
        arrays.pop("token_frequencies", None)
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"`{folder}` exists. Remove it or choose another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        new_folder = Path(temporary) / "new"
        new_folder.mkdir()
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        _export(_plain_copy(cde_model.second_stage_model), tensors, new_folder / "model.onnx", context_as_input)
        if quantize:
            _quantize(new_folder / "model.onnx")
        exported = onnx_module.CDEOnnxTransformer(
            new_folder / "model.onnx",
            model.tokenizer,
            max_seq_length=model.max_seq_length,  # type: ignore[arg-type]  # a CDE checkpoint has one
            embedding_dimension=config.hidden_size,
            fingerprint=context.fingerprint,
            context=context if context_as_input else None,
        )
        exported.save(str(new_folder))
        onnx_module.write_onnx_modules_file(new_folder)
        settings = {
            "model_type": "SentenceTransformer",
            "prompts": model.prompts,
            "default_prompt_name": model.default_prompt_name,
            "similarity_fn_name": model.similarity_fn_name,
        }
        (new_folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
        os.replace(new_folder, folder)


class _TensorsIn(nn.Module):
    """The second stage with tensors as inputs, in the order `input_ids`, `attention_mask`, context."""

    def __init__(self, stage: SecondStage, context: dict[str, Tensor], *, context_as_input: bool):
        super().__init__()
        self.stage = stage
        self.names = list(context)
        self.context_as_input = context_as_input
        if not context_as_input:
            for name, tensor in context.items():
                self.register_buffer(name, tensor)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *context: Tensor) -> Tensor:
        if not self.context_as_input:
            context = tuple(getattr(self, name) for name in self.names)
        given = dict(zip(self.names, context, strict=True))
        frequencies = given.get("token_frequencies")
        keys_values = None
        if "context_keys" in given:
            keys_values = tuple(zip(given["context_keys"], given["context_values"], strict=True))
        whole_context = Context(given.get("dataset_embeddings"), frequencies, keys_values)
        return self.stage(input_ids, attention_mask, context=whole_context)


def _plain_copy(stage: SecondStage) -> SecondStage:
    """A copy on the CPU in float32 with eager attention, whose matrix products ONNX supports."""
    stage = copy.deepcopy(stage).float().cpu().eval()
    stage.backbone.set_attn_implementation("eager")
    return stage


def _export(stage: SecondStage, context: dict[str, Tensor], path: Path, context_as_input: bool) -> None:
    wrapper = _TensorsIn(stage, context, context_as_input=context_as_input).eval()
    input_ids = torch.arange(3, 3 + 3 * 11).view(3, 11) % stage.config.vocab_size
    attention_mask = (torch.arange(11) < torch.tensor([[11], [5], [8]])).long()
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    inputs = tuple(context.values()) if context_as_input else ()
    shapes: dict[str, Any] = {"input_ids": free, "attention_mask": free}
    if inputs:
        shapes["context"] = (None,) * len(inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own dependencies
        program: Any = torch.onnx.export(
            wrapper,
            (input_ids, attention_mask, *inputs),
            input_names=["input_ids", "attention_mask", *(context if context_as_input else ())],
            output_names=["sentence_embedding"],
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
    # The exporter notes the traceback of every node, which names files of this machine.
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.save(str(path), external_data=False)


def _quantize(path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        small = Path(folder) / path.name
        quantize_dynamic(str(path), str(small), weight_type=QuantType.QInt8, per_channel=True)
        os.replace(small, path)


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("The export to ONNX needs more packages: `pip install 'cde-hf[onnx]'`.") from error


__all__ = ["export_onnx"]
