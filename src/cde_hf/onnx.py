"""
Exports a contextual model to ONNX, in a folder for sentence-transformers, text-embeddings-inference and fastembed.

1. The model's modules are wrapped so that the inputs are tensors: `input_ids`, `attention_mask`, and the context as
   constants or as more inputs.
2. The wrapper recognises the model's prompts by their tokens at the beginning of a text, because a server adds them
   before it tokenizes.
3. PyTorch exports it with dynamic numbers of texts and tokens.
4. Optionally, the weights of the matrix products are quantised to int8, and activations dynamically.
5. The settings that the servers read are written beside the graph.

The first stage of a CDE checkpoint is not exported: contexts are encoded with PyTorch.
"""

import copy
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from .contextual_models import find_cde_model, find_contextual_module, get_context
from .files import REQUIREMENTS, FolderKind
from .modeling import Context
from .modeling.backbones import move_padding_to_the_right
from .modeling.sentence_transformers_onnx import OnnxTransformer, context_inputs


logger = logging.get_logger(__name__)

OPSET = 20  # the servers' onnxruntime must know it: onnxruntime does since 1.17

ONNX = FolderKind("ONNX model", 1, "Export the model again.", read_first=("modules.json", "config.json"))


def export_onnx(
    model: SentenceTransformer,
    folder: str | os.PathLike,
    *,
    context_as_input: bool = False,
    quantize: bool = False,
) -> None:
    """
    Exports a contextual model and its context to a folder, as `model.onnx`.

    `SentenceTransformer(folder, trust_remote_code=True)` loads it if onnxruntime is installed, and the servers
    text-embeddings-inference and fastembed load it without this package. The graph takes `input_ids` and
    `attention_mask` of shape `(batch_size, sequence_length)` and returns `sentence_embedding`. It treats every text as
    a document.

    Args:
        model (`SentenceTransformer`):
            A contextualized model or a CDE checkpoint, with its context.
        folder (`str` or `os.PathLike`):
            Folder to write. An older export in it is replaced once the new one is complete.
        context_as_input (`bool`, *optional*, defaults to `False`):
            Whether the context is an input of the graph, so that it can be changed later, instead of a constant. Only
            for a CDE checkpoint without a corpus part. Servers cannot load such a graph.
        quantize (`bool`, *optional*, defaults to `False`):
            Whether to quantise to int8.
    """
    _require_packages()
    cde_model = find_cde_model(model)
    context = _context_of(model)
    if context_as_input and (cde_model is None or len(list(model.children())) > 1):
        raise ValueError(
            "`context_as_input=True` is only for a CDE checkpoint without a corpus part. Leave it out, and export "
            "the model again for another corpus."
        )
    if any(model.prompts.values()) and any(map(_weighs_positions_after_prompts, model.children())):
        raise ValueError(
            "The pooling `weightedmean` of this model excludes prompts but counts their positions, which the graph "
            "cannot. Call `model.set_pooling_include_prompt(True)`, or remove the prompts: `model.prompts = {}`."
        )
    ONNX.refuse_foreign(folder)
    encoder, *others = (_plain_copy(module, model) for module in _modules_to_export(model))
    inputs: dict[str, Tensor] = {}
    if cde_model is not None:
        arrays = context_inputs(context)
        if not cde_model.config.counts_tokens:
            arrays.pop("token_frequencies", None)
        inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
        encoder = _SecondStageModule(encoder, inputs, context_as_input=context_as_input)
    graph = _Graph(encoder, others, context.to("cpu"), _find_prompts(model)).eval()
    with ONNX.replacing(folder) as new_folder:
        dimension = _export(graph, inputs if context_as_input else {}, new_folder / "model.onnx")
        if quantize:
            _quantize(new_folder / "model.onnx")
        exported = OnnxTransformer(
            new_folder / "model.onnx",
            model.tokenizer,
            max_seq_length=model.max_seq_length,  # type: ignore[arg-type]  # a model with a tokenizer has one
            embedding_dimension=dimension,
            strip_texts=cde_model is not None,
            fingerprint=context.fingerprint,
            context=context if context_as_input else None,
        )
        # A tokenizer saves the length of its last call, at which servers truncate.
        model.tokenizer("", padding=True, truncation=True, max_length=model.max_seq_length)
        exported.save(str(new_folder))
        _write_settings(model, new_folder, dimension)


def _write_settings(model: SentenceTransformer, folder: Path, dimension: int) -> None:
    """
    Writes the settings that sentence-transformers, text-embeddings-inference and fastembed read.

    text-embeddings-inference requires each field of `config.json` and `1_Pooling/config.json`, although the graph
    pools. fastembed truncates to the smallest length in the tokenizer's configuration.
    """
    modules = _modules_to_export(model)[0].modules()
    encoder = next(module for module in modules if isinstance(module, PreTrainedModel))
    config: Any = encoder.config
    read = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    lengths = {"model_max_length": model.max_seq_length, "max_length": model.max_seq_length}
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers_onnx.OnnxTransformer"}
    settings: dict[str, Any] = {
        "modules.json": [module],
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {name: prompt or "" for name, prompt in model.prompts.items()},
            "default_prompt_name": model.default_prompt_name,
            "similarity_fn_name": model.similarity_fn_name,
            "requirements": REQUIREMENTS,
        },
        "config.json": {
            "architectures": [type(encoder).__name__],
            "model_type": config.model_type,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            "max_position_embeddings": getattr(config, "max_position_embeddings", model.max_seq_length),
            "pad_token_id": model.tokenizer.pad_token_id,
        },
        "sentence_bert_config.json": {"max_seq_length": model.max_seq_length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": dimension,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "tokenizer_config.json": read | lengths,
        "special_tokens_map.json": model.tokenizer.special_tokens_map,
    }
    (folder / "1_Pooling").mkdir()
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _context_of(model: SentenceTransformer) -> Context:
    if find_contextual_module(model) is None or next(model.parameters(), None) is None:
        kinds = ", ".join(type(module).__name__ for module in model.children())
        raise ValueError(
            f"Only a contextual model in PyTorch can be exported, but the modules of this one are {kinds}. Make a "
            "contextual one: `contextualize(model, corpus)`, or `cde-hf contextualize`. For a model without a context "
            "use sentence-transformers' own ONNX backend."
        )
    context = get_context(model)
    if context is None:
        raise ValueError(
            "The model has no context to export. Call `set_context(model, corpus)` first, or give `--context`."
        )
    return context


def _weighs_positions_after_prompts(module: Any) -> bool:
    return not getattr(module, "include_prompt", True) and "weightedmean" in module.pooling_mode


def _modules_to_export(model: SentenceTransformer) -> list[nn.Module]:
    """The modules, with the second stage in the place of a CDE model."""
    cde_model = find_cde_model(model)
    first, *others = model.children()
    return [first if cde_model is None else cde_model.second_stage_model, *others]


def _plain_copy(module: nn.Module, model: SentenceTransformer) -> nn.Module:
    """A copy on the CPU in float32 with eager attention, whose matrix products ONNX supports."""
    module = copy.deepcopy(module, {id(model): model}).float().cpu().eval()  # without a copy of the model it refers to
    for each in module.modules():
        if isinstance(each, PreTrainedModel):
            each.set_attn_implementation("eager")
            break  # which sets it in all parts
    return module


def _find_prompts(model: SentenceTransformer) -> list[tuple[Tensor, int]]:
    """Tokens by which each prompt is recognised, the shortest first, and the prompt's length according to PyTorch."""
    first: Any = model[0]
    found = []
    for prompt in dict.fromkeys(filter(None, model.prompts.values())):
        alone, before_text = first.preprocess([prompt]), first.preprocess(["x"], prompt=prompt)
        # The end of a prompt can vanish when a text follows, such as a space that becomes a part of the first word.
        token_ids = os.path.commonprefix([alone["input_ids"][0].tolist(), before_text["input_ids"][0].tolist()])
        if set(token_ids) <= set(model.tokenizer.all_special_ids):
            logger.warning(
                f"The prompt {prompt!r} becomes one token with the beginning of a text. The graph cannot recognise it "
                "and treats it as text. Use a prompt that ends with a space."
            )
        else:
            found.append((torch.tensor(token_ids), before_text.get("prompt_length", 0)))
    return sorted(found, key=lambda pair: len(pair[0]))


class _Graph(nn.Module):
    """
    A model with tensors as inputs, in the order `input_ids`, `attention_mask`, context inputs.

    sentence-transformers tells the modules how long the prompt is. Here it is recognised by its tokens. A text without
    a prompt that begins with the same tokens is treated the same.
    """

    def __init__(
        self, encoder: nn.Module, others: list[nn.Module], context: Context, prompts: list[tuple[Tensor, int]]
    ):
        super().__init__()
        self.encoder = encoder
        self.others = nn.ModuleList(others)
        self.context = context
        self.prompts = prompts

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *context_inputs: Tensor) -> Tensor:
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        features = self.encoder(features, *context_inputs)
        features["context"] = self.context
        num_prompt_tokens, prompt_length = self._measure_prompts(input_ids, attention_mask)
        for module in self.others:
            if not hasattr(module, "include_prompt"):  # a corpus part counts the words of the text
                features["attention_mask"] = _without_beginning(attention_mask, num_prompt_tokens)
            elif module.include_prompt:
                features |= {"attention_mask": attention_mask, "prompt_length": prompt_length}
            else:
                features["attention_mask"] = _without_beginning(attention_mask, prompt_length)
            features = module(features)
        return features["sentence_embedding"]

    def _measure_prompts(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The number of tokens that are certainly the prompt's, and PyTorch's length, of shape `(batch_size,)`."""
        rows, _ = move_padding_to_the_right(input_ids, attention_mask)
        num_tokens = length = torch.zeros_like(input_ids[:, 0])
        for token_ids, prompt_length in self.prompts:  # of two that begin the same, the longer one is last
            beginnings = F.pad(rows, (0, len(token_ids)), value=-1)[:, : len(token_ids)]
            is_prompt = (beginnings == token_ids).all(dim=1)
            num_tokens = torch.where(is_prompt, len(token_ids), num_tokens)
            length = torch.where(is_prompt, prompt_length, length)
        return num_tokens, length


def _without_beginning(attention_mask: Tensor, length: Tensor) -> Tensor:
    """The mask without the first tokens of each text, as many as its `length` says."""
    start = attention_mask.int().argmax(dim=1) + length  # after the padding on the left
    index = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return attention_mask * (index >= start.unsqueeze(1))


class _SecondStageModule(nn.Module):
    """The second stage of a CDE model, whose context is constant or more inputs, on features."""

    def __init__(self, stage: nn.Module, context: dict[str, Tensor], *, context_as_input: bool):
        super().__init__()
        self.stage = stage
        self.names = list(context)
        self.constants = () if context_as_input else tuple(context.values())

    def forward(self, features: dict[str, Any], *inputs: Tensor) -> dict[str, Any]:
        given = dict(zip(self.names, inputs or self.constants, strict=True))
        keys_values = None
        if "context_keys" in given:
            keys_values = tuple(zip(given["context_keys"], given["context_values"], strict=True))
        context = Context(given.get("dataset_embeddings"), given.get("token_frequencies"), keys_values)
        embeddings = self.stage(features["input_ids"], features["attention_mask"], context=context)
        return {**features, "sentence_embedding": embeddings}


def _export(graph: _Graph, context_inputs: dict[str, Tensor], path: Path) -> int:
    """Writes the graph, and returns the size of the embeddings."""
    input_ids = torch.arange(3, 3 + 3 * 11).view(3, 11)
    attention_mask = (torch.arange(11) < torch.tensor([[11], [5], [8]])).long()
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    inputs = (input_ids, attention_mask, *context_inputs.values())
    shapes: dict[str, Any] = {"input_ids": free, "attention_mask": free}
    if context_inputs:
        shapes["context_inputs"] = (None,) * len(context_inputs)
    with torch.no_grad(), _quiet_exporter():
        dimension = graph(*inputs).shape[1]
        try:
            program: Any = torch.onnx.export(
                graph,
                inputs,
                input_names=["input_ids", "attention_mask", *context_inputs],
                output_names=["sentence_embedding"],
                opset_version=OPSET,
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason: BaseException = error
            while reason.__cause__ is not None:
                reason = reason.__cause__
            raise ValueError(
                f"PyTorch cannot export this model to ONNX with opset {OPSET}: {reason}. Replace the module that has "
                "this operator, or serve the model with PyTorch."
            ) from error
    # The exporter notes the traceback of every node, which names files of this machine.
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.save(str(path), external_data=False)
    return dimension


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter warns and logs about its own dependencies and steps."""
    others = [getLogger(name) for name in ("root", "torch.onnx", "onnxscript", "onnx_ir")]
    levels = [other.level for other in others]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for other in others:
            other.setLevel(ERROR)
        try:
            yield
        finally:
            for other, level in zip(others, levels, strict=True):
                other.setLevel(level)


def _quantize(path: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = path.with_suffix(".int8.onnx")
    graph = onnx.load(path).graph
    # Keys and values of a context, with one matrix for each head, for which a scale per channel cannot be run.
    stacks = {weight.name for weight in graph.initializer if len(weight.dims) > 2}
    kept = [node.name for node in graph.node if node.op_type == "MatMul" and stacks.intersection(node.input)]
    with _quiet_exporter():
        quantize_dynamic(str(path), str(small), weight_type=QuantType.QInt8, per_channel=True, nodes_to_exclude=kept)
    small.replace(path)


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("The export to ONNX needs more packages: `pip install 'cde-hf[onnx]'`.") from error


__all__ = ["export_onnx"]
