"""
Adapts a model to a corpus: `contextualize`, and the context of any sentence-transformers model.

A model that takes a context has one or two modules that do: a pooling or a CDE model, and a corpus part behind it. The
last of them sets the context of both.
"""

import copy
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn import Module
from transformers import PreTrainedModel
from transformers.utils import logging

from .data import Corpus, check_counts, check_positive, check_seed, load_documents
from .files import CHECKPOINT, REQUIREMENTS, write_text
from .messages import kind_of
from .model_names import model_path, named_model
from .modeling import CDEConfig, CDEModel, Context, ContextualModule
from .modeling.context import as_context
from .modeling.corpus_part import CorpusPart, WholeTextTransformer
from .modeling.frequency_pooling import FrequencyPooling
from .modeling.pooling import DEFAULT_FREQUENCY_SCALE


logger = logging.get_logger(__name__)

DEFAULT_CORPUS_DIM = 256

ModelClass = TypeVar("ModelClass", bound=SentenceTransformer)


class ContextualizedSentenceTransformer(SentenceTransformer):
    """
    A contextual `SentenceTransformer`, made by [`contextualize`].

    Its checkpoints contain the code of its modules, so `SentenceTransformer(path, trust_remote_code=True)` loads them
    where this package is not installed.
    """

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """
        Saves the model with the code that it needs without this package.

        The folder must be new, empty, or the folder of an older checkpoint, which is replaced as a whole.
        """
        with CHECKPOINT.replacing(path) as new_folder:
            super().save(str(new_folder), *args, **kwargs)
            complete_checkpoint(new_folder)
            rewrite_file(new_folder / "README.md", _ask_for_remote_code)


def contextualize(
    model: SentenceTransformer | str | os.PathLike,
    corpus: Corpus | Context | None,
    *,
    corpus_dim: int | None = None,
    size: int | None = None,
    frequency_scale: float | None = None,
    seed: int = 0,
) -> ContextualizedSentenceTransformer:
    """
    Adapts a sentence-transformers model to a corpus, without labels and without training.

    1. *Context-frequency pooling*: the mean down-weights tokens that occur in many documents. A token that occurs in
       the share `p` of the documents has weight `a / (a + p)`. A model that pools otherwise keeps its pooling.
    2. The *corpus part*: a second vector behind the dense one, from term vectors that are fitted to the corpus. Its
       cosine is weighted by how far the cosines of the model spread between documents of the corpus.

    Encode queries and documents with the result, and compare them by the cosine. The given model stays unchanged; both
    share their weights.

    Args:
        model (`SentenceTransformer`, `str` or `os.PathLike`):
            A model, or its folder or Hub name, or `"minilm"`: an encoder with a pooling, or a CDE checkpoint.
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str`, `Path`, `Context` or `None`):
            The corpus: a list of texts, texts by id, a dataset with a column `text`, or the path of a file. Documents
            without text are skipped. Or a context of such a model. With `None`, embeddings are the plain ones, padded
            with zeros, until `set_context(model, corpus)`.
        corpus_dim (`int`, *optional*):
            Dimensions of the corpus part, 0 for none. Defaults to what the model already has, or 256.
        size (`int`, *optional*):
            Number of documents to sample. By default up to 50,000, of which a CDE model embeds `context_size`.
        frequency_scale (`float`, *optional*):
            The scale `a`: the share of the documents at which a token has the weight 0.5. Defaults to the scale that
            the model already has, or 0.2.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples and of the fit.

    Returns:
        `ContextualizedSentenceTransformer`: The model, which encodes, saves and loads like any other.
    """
    check_counts(size=size)
    check_seed(seed)
    check_positive(frequency_scale=frequency_scale)
    if corpus_dim is not None and (not isinstance(corpus_dim, Integral) or corpus_dim < 0 or corpus_dim == 1):
        raise ValueError(f"`corpus_dim` must be 0, for no corpus part, or at least 2, got {corpus_dim!r}.")
    model = load_if_path(model)
    if not isinstance(model, SentenceTransformer):
        raise TypeError(
            "`model` must be a sentence-transformers model, or its folder or Hub name, got "
            f"{kind_of(model)}. Load it with `SentenceTransformer(folder)`."
        )
    modules: OrderedDict[str, Module] = OrderedDict(model.named_children())
    old_settings: dict[str, Any] = {}
    for name, module in list(modules.items()):
        if isinstance(module, ContextualModule):
            old_settings |= module.settings
            modules[name] = copy.copy(module)  # shallow: the weights are shared, the context is not
            if "corpus_dim" in module.settings:
                del modules[name]
    if find_cde_model(model) is None:
        _replace_pooling(modules, frequency_scale, old_settings.get("frequency_scale", DEFAULT_FREQUENCY_SCALE))
    elif frequency_scale is not None:
        raise ValueError("`frequency_scale` of a CDE checkpoint is part of its configuration. Leave it out here.")
    if corpus_dim is None:
        corpus_dim = old_settings.get("corpus_dim", DEFAULT_CORPUS_DIM)
    _choose_transformer(modules, counts_terms=corpus_dim != 0)
    if corpus_dim != 0:
        _append_corpus_part(modules, corpus_dim, model.similarity_fn_name)
    elif not any(isinstance(module, ContextualModule) for module in modules.values()):
        raise ValueError(
            "Without mean pooling and with `corpus_dim=0`, nothing of this model depends on a corpus. Leave "
            "`corpus_dim` out."
        )
    contextualized = rebuild(model, modules, ContextualizedSentenceTransformer)
    set_context(contextualized, corpus, size=size, seed=seed)
    return contextualized


def _replace_pooling(modules: OrderedDict[str, Module], frequency_scale: float | None, default_scale: float) -> None:
    """Puts context-frequency pooling in the place of a mean. Other poolings stay."""
    found = [(name, module) for name, module in modules.items() if isinstance(module, Pooling)]
    if len(found) != 1 or not isinstance(next(iter(modules.values())), Transformer):
        kinds = ", ".join(type(module).__name__ for module in modules.values())
        raise ValueError(
            "Only a model that starts with a `Transformer` and has one `Pooling` can be contextualized, but the "
            f"modules of this model are: {kinds}. Use a model that pools the token vectors of an encoder."
        )
    name, pooling = found[0]
    if pooling.pooling_mode == "mean":
        modules[name] = FrequencyPooling(
            pooling.embedding_dimension,
            include_prompt=pooling.include_prompt,
            frequency_scale=default_scale if frequency_scale is None else frequency_scale,
        )
    elif frequency_scale is not None:
        raise ValueError(
            f"`frequency_scale` is for a mean pooling, but this model pools by {pooling.pooling_mode!r}. Leave it out."
        )
    else:
        logger.warning(
            f"This model pools by {pooling.pooling_mode!r}, but token frequencies can only weight a mean. It gets the "
            "corpus part alone."
        )


def _choose_transformer(modules: OrderedDict[str, Module], *, counts_terms: bool) -> None:
    """Puts a `WholeTextTransformer` in the place of a `Transformer`, or the other way round."""
    name, first = next(iter(modules.items()))
    if isinstance(first, Transformer) and hasattr(first, "read_terms") != counts_terms:
        modules[name] = copy.copy(first)  # shallow: the weights are shared
        modules[name].__class__ = WholeTextTransformer if counts_terms else Transformer


def _append_corpus_part(modules: OrderedDict[str, Module], corpus_dim: int, similarity: str) -> None:
    is_unit_norm = any(isinstance(module, Normalize) for module in modules.values())
    if similarity != "cosine" and not (similarity == "dot" and is_unit_norm):
        raise ValueError(
            f"The corpus part is for models that are compared by the cosine, this one uses `{similarity}`. Use "
            "`corpus_dim=0`, or set `model.similarity_fn_name = 'cosine'` if that suits the model."
        )
    sizes = (getattr(module, "get_embedding_dimension", None) for module in reversed(modules.values()))
    dense_dim = next(size() for size in sizes if size is not None)
    modules[str(len(modules))] = CorpusPart(dense_dim, corpus_dim)


def load_if_path(model: SentenceTransformer | str | os.PathLike) -> SentenceTransformer:
    """Loads a model that is given by its folder or name, without running code that it contains."""
    if not isinstance(model, str | os.PathLike):
        return model
    name = os.fspath(model)
    with named_model(name):
        return SentenceTransformer(model_path(name))


def get_context(model: SentenceTransformer) -> Context | None:
    """
    Returns the context of a model.

    Args:
        model (`SentenceTransformer`):
            A contextualized model, a CDE checkpoint, or any other model.

    Returns:
        `Context` or `None`: The context. `None` if none was set, or if the model takes none.
    """
    module = find_contextual_module(model)
    return None if module is None else as_context(module.context)


def set_context(
    model: SentenceTransformer,
    corpus: Corpus | Context | None,
    *,
    size: int | None = None,
    seed: int = 0,
) -> None:
    """
    Sets the context for every text that a model encodes from now on.

    Args:
        model (`SentenceTransformer`):
            A contextualized model or a CDE checkpoint.
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str`, `Path`, `Context` or `None`):
            The corpus: a list of texts, texts by id, a dataset with a column `text`, or the path of a file. Or a
            context, such as the result of [`get_context`]. `Context()` gives embeddings without a context. `None`
            removes the context.
        size (`int`, *optional*):
            Number of documents to sample. Defaults to what the model reads: `context_size` documents for a CDE
            checkpoint, up to 50,000 for a contextualized model.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sample.
    """
    check_counts(size=size)
    check_seed(seed)
    module = find_contextual_module(model)
    if module is None:
        kinds = ", ".join(type(module).__name__ for module in model.children())
        raise ValueError(
            f"This model takes no context: its modules are {kinds}. Make a contextual one: `contextualize(model, "
            "corpus)`, or `cde-hf contextualize`."
        )
    documents = None if corpus is None else as_context(corpus) or load_documents(corpus)
    module.set_context(documents, size=size, seed=seed)


def find_contextual_module(model: SentenceTransformer) -> ContextualModule | None:
    """Returns the module that sets the context of a model: the last that takes one. `None` if there is none."""
    _check_loaded(model)
    return next((module for module in reversed(list(model.children())) if isinstance(module, ContextualModule)), None)


def find_cde_model(model: SentenceTransformer) -> CDEModel | None:
    """Returns the `CDEModel` of a CDE checkpoint. Its class may come from the checkpoint's own copy of the code."""
    _check_loaded(model)
    network = getattr(model[0], "model", None)
    is_cde = isinstance(network, PreTrainedModel) and network.config.model_type == CDEConfig.model_type
    return network if is_cde else None


def _check_loaded(model: Any) -> None:
    if isinstance(model, str | os.PathLike):
        raise TypeError(
            f"`model` must be a loaded model, got the path `{model}`. Load it with "
            f"`SentenceTransformer('{model}', trust_remote_code=True)`."
        )


def rebuild(
    model: SentenceTransformer, modules: OrderedDict[str, Module], model_class: type[ModelClass]
) -> ModelClass:
    """
    A model of other modules with the settings of a model.

    Args:
        model (`SentenceTransformer`):
            The model, which stays unchanged.
        modules (`OrderedDict[str, torch.nn.Module]`):
            The modules by name.
        model_class (`type`):
            Class of the new model.
    """
    new_model = model_class(
        modules=modules,  # type: ignore[arg-type]  # the base class takes names too
        device=str(model.device),
        prompts=model.prompts,  # type: ignore[arg-type]  # `SentenceTransformer` also stores `None` as a prompt
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
        trust_remote_code=True,  # a trainer reads its own checkpoints, which have code
    )
    new_model.module_kwargs = model.module_kwargs
    return new_model


def with_context(
    model: SentenceTransformer, context: Context | None, settings: Mapping[str, Any] | None = None
) -> SentenceTransformer:
    """
    Returns a copy of a model with another context. Both share their weights.

    Args:
        model (`SentenceTransformer`):
            The model, which stays unchanged. A plain model is contextualized.
        context (`Context` or `None`):
            The context. `None` for a plain model.
        settings (`Mapping[str, Any]`, *optional*):
            Settings of a contextualized model that had this context, for a plain model. See [`VectorOrigin`].

    Returns:
        `SentenceTransformer`: The model with that context.
    """
    if find_contextual_module(model) is None:
        if context is None:
            return model
        settings = settings or {}
        return contextualize(
            model,
            context,
            corpus_dim=settings.get("corpus_dim", 0),
            frequency_scale=settings.get("frequency_scale"),
        )
    modules: OrderedDict[str, Any] = OrderedDict(model.named_children())
    for name, module in modules.items():
        if isinstance(module, ContextualModule):
            modules[name] = copy.copy(module)  # shallow: the weights are shared, the context is not
    twin = rebuild(model, modules, type(model))
    set_context(twin, context)
    return twin


def with_own_context(model: SentenceTransformer, texts: Sequence[str], *, seed: int = 0) -> SentenceTransformer:
    """Returns a copy of a model with its own context or, if it takes one and has none, the context of the texts."""
    twin = with_context(model, get_context(model))
    if find_contextual_module(twin) is not None and get_context(twin) is None:
        set_context(twin, texts, seed=seed)
        logger.info(f"Made a context from the corpus: {get_context(twin)}.")
    return twin


def without_context(model: SentenceTransformer) -> SentenceTransformer:
    """Returns a copy of the model without any context: a CDE checkpoint as a plain biencoder, others unchanged."""
    return model if find_contextual_module(model) is None else with_context(model, Context())


def complete_checkpoint(folder: str | os.PathLike) -> None:
    """Makes a saved model name the code beside it, in place of this package, and the versions that it needs."""
    package = CorpusPart.__module__.rpartition(".")[0]
    rewrite_file(Path(folder) / "modules.json", lambda modules: modules.replace(f'"{package}.', '"'))
    rewrite_file(
        Path(folder) / "config_sentence_transformers.json",
        lambda settings: json.dumps(json.loads(settings) | {"requirements": REQUIREMENTS}, indent=2),
    )


def _ask_for_remote_code(card: str) -> str:
    card = card.replace(ContextualizedSentenceTransformer.__name__, "SentenceTransformer")
    return re.sub(r'(SentenceTransformer\("[^"]*")\)', r"\1, trust_remote_code=True)", card)


def rewrite_file(path: Path, change: Callable[[str], str]) -> None:
    """Changes the text of a file, if it exists."""
    if path.is_file():
        write_text(path, change(path.read_text(encoding="utf-8")))


__all__ = [
    "ContextualizedSentenceTransformer",
    "complete_checkpoint",
    "contextualize",
    "find_cde_model",
    "find_contextual_module",
    "get_context",
    "load_if_path",
    "set_context",
    "with_context",
    "with_own_context",
    "without_context",
]
