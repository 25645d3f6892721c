"""
A contextual model in ONNX as a sentence-transformers module: `encode` without PyTorch weights.

The context is part of the graph, or an input that this module stores. As an input it consists of the context block's
keys and values in prefix attention, and of the first-stage vectors in joint attention.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sentence_transformers.base.modules import InputModule
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .context import Context, as_context, check_text, ship_code


ONNX_FILE = "model.onnx"
CONTEXT_FILE = "onnx_context.safetensors"


class OnnxTransformer(InputModule):
    """
    Sentence-transformers module that wraps a model exported to ONNX.

    Args:
        model_file (`str` or `os.PathLike`):
            The ONNX file.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        max_seq_length (`int`):
            Maximum number of tokens of a text.
        embedding_dimension (`int`):
            Size of the embeddings.
        strip_texts (`bool`, *optional*, defaults to `True`):
            Whether to remove the white space around texts, as CDE models do.
        fingerprint (`str`, *optional*):
            Fingerprint of the second stage that was exported. Contexts of other models are refused.
        context (`Context`, *optional*):
            The context, if it is an input of the graph.
    """

    config_file_name = "sentence_transformers_onnx_config.json"
    config_keys = ["max_seq_length", "embedding_dimension", "strip_texts", "fingerprint"]
    save_in_root = True

    tokenizer: PreTrainedTokenizerBase

    def __init__(
        self,
        model_file: str | os.PathLike,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_seq_length: int,
        embedding_dimension: int,
        strip_texts: bool = True,
        fingerprint: str | None = None,
        context: Context | None = None,
    ):
        super().__init__()
        self.model_file = Path(model_file)
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.embedding_dimension = embedding_dimension
        self.strip_texts = strip_texts
        self.fingerprint = fingerprint
        self.session = _open_session(self.model_file)
        self._context_names = {each.name for each in self.session.get_inputs()} - {"input_ids", "attention_mask"}
        self.context: Context | None = None
        self._context_arrays: dict[str, np.ndarray] = {}
        if context is not None:
            self.set_context(context)

    @property
    def settings(self) -> dict[str, Any]:
        """What the vectors depend on besides weights, tokenizer and context. Always empty."""
        return {}

    def set_context(self, documents: Any, *, size: int | None = None, seed: int = 0) -> None:
        """
        Sets the context, if it is an input of the graph.

        Args:
            documents (`Context` or `None`):
                A context encoded by the PyTorch model, or `None` to remove it. Documents are refused, because the
                first stage is not here.
            size, seed (`int`, *optional*):
                Not used here.
        """
        if documents is None:
            self.context = None
            return
        if not self._context_names:
            raise ValueError(
                "The context is part of this ONNX graph and cannot be changed, so this model cannot build an index. "
                "Use the PyTorch model, or export it with `context_as_input=True`."
            )
        context = as_context(documents)
        if context is None:
            raise TypeError(
                f"A model in ONNX cannot encode a context, got a `{type(documents).__name__}`. Set the documents on "
                "the PyTorch model, and give this one its context."
            )
        if None not in (context.fingerprint, self.fingerprint) and context.fingerprint != self.fingerprint:
            raise ValueError("The context was made by another model. Encode it with the model that was exported.")
        arrays = context_inputs(context)
        arrays = {name: array for name, array in arrays.items() if name in self._context_names}
        if arrays.keys() != self._context_names:
            raise ValueError(
                f"The graph reads the context from {sorted(self._context_names)}, got {sorted(arrays)}. Pass a "
                "context of the exported model."
            )
        for each in self.session.get_inputs():
            if each.name in arrays and list(arrays[each.name].shape) != each.shape:
                raise ValueError(
                    f"`{each.name}` must have the shape {tuple(each.shape)}, got {arrays[each.name].shape}. Pass a "
                    "full context of the exported model."
                )
        self.context, self._context_arrays = context, arrays

    def preprocess(  # type: ignore[override]  # no images, audio or pairs
        self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Tokenizes texts. Called by `SentenceTransformer`."""
        for text in inputs:
            check_text(text, "`inputs`")
        texts = [(prompt or "") + (text.strip() if self.strip_texts else text) for text in inputs]
        features = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.max_seq_length,
            return_tensors="pt",
        )
        return {name: features[name] for name in ("input_ids", "attention_mask")}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Adds `sentence_embedding` of shape `(batch_size, embedding_dimension)` to the features."""
        if self._context_names and self.context is None:
            raise ValueError(
                "The context is an input of this ONNX graph, but none is set. Call `set_context(model, context)` with "
                "a context encoded by the PyTorch model."
            )
        inputs = {name: features[name].cpu().numpy() for name in ("input_ids", "attention_mask")}
        embeddings = self.session.run(["sentence_embedding"], {**inputs, **self._context_arrays})[0]
        features["sentence_embedding"] = torch.from_numpy(embeddings).to(features["input_ids"].device)
        return features

    def get_embedding_dimension(self) -> int:
        """Size of the embeddings."""
        return self.embedding_dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Saves graph, tokenizer, settings, context and the code that loads them."""
        folder = Path(output_path)
        if self.model_file.resolve() != (folder / ONNX_FILE).resolve():
            shutil.copyfile(self.model_file, folder / ONNX_FILE)
        self.tokenizer.save_pretrained(output_path)
        self.save_config(output_path)
        if self.context is not None:
            facts = {"num_documents": self.context.num_documents, "fingerprint": self.context.fingerprint}
            save_file(self._context_arrays, folder / CONTEXT_FILE, metadata={Context.format: json.dumps(facts)})
        ship_code(__file__, folder)

    @classmethod
    def load(  # type: ignore[override]  # `SentenceTransformer` passes the rest by name
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> "OnnxTransformer":
        """Loads what [`OnnxTransformer.save`] saved. Called by `SentenceTransformer`."""
        names = ("token", "cache_folder", "revision", "local_files_only")
        hub_kwargs = {name: kwargs[name] for name in names if name in kwargs}
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub_kwargs)
        model_file = cls.load_file_path(model_name_or_path, ONNX_FILE, subfolder=subfolder, **hub_kwargs)
        if model_file is None:
            raise FileNotFoundError(f"`{model_name_or_path}` has no file `{ONNX_FILE}`. Export the model again.")
        context_file = cls.load_file_path(model_name_or_path, CONTEXT_FILE, subfolder=subfolder, **hub_kwargs)
        renamed = {"cache_dir" if name == "cache_folder" else name: value for name, value in hub_kwargs.items()}
        # Without a value it may ask in the terminal.
        renamed["trust_remote_code"] = kwargs.get("trust_remote_code", False)
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path, subfolder=subfolder, **renamed)
        context = _load_context(context_file) if context_file is not None else None
        return cls(model_file, tokenizer, **config, context=context)


def context_inputs(context: Context) -> dict[str, np.ndarray]:
    """
    Converts a context to inputs of a graph.

    Args:
        context (`Context`):
            A context of a CDE model. In prefix attention it needs its context block.

    Returns:
        `dict[str, np.ndarray]`: `context_keys` and `context_values` of shape `(num_layers, 1, num_heads,
        num_block_tokens, head_dim)`, or `dataset_embeddings` of shape `(num_documents, hidden_size)`; and
        `token_frequencies` of shape `(vocab_size,)`, if the context has them.
    """
    tensors: dict[str, Tensor | None] = {"token_frequencies": context.token_frequencies}
    if context.keys_values is not None:
        tensors["context_keys"] = torch.stack([key for key, _ in context.keys_values])
        tensors["context_values"] = torch.stack([value for _, value in context.keys_values])
    else:
        tensors["dataset_embeddings"] = context.embeddings
    return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items() if tensor is not None}


def _load_context(path: str) -> Context:
    """Reads the context of which [`context_inputs`] were saved."""
    with safe_open(path, "np") as file:
        facts = json.loads(file.metadata()[Context.format])
    tensors = {name: torch.from_numpy(array) for name, array in load_file(path).items()}
    keys_values = None
    if "context_keys" in tensors:
        keys_values = tuple(zip(tensors["context_keys"], tensors["context_values"], strict=True))
    return Context(tensors.get("dataset_embeddings"), tensors.get("token_frequencies"), keys_values, **facts)


def _open_session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("A model in ONNX needs onnxruntime. Install it: `pip install onnxruntime`.") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=onnxruntime.get_available_providers())
    except Exception as error:  # onnxruntime's errors have no base of their own
        raise ValueError(
            f"onnxruntime {onnxruntime.__version__} cannot read `{path}`: {error}. Update onnxruntime, or export the "
            "model again."
        ) from error


__all__ = ["OnnxTransformer", "context_inputs"]
