"""Context-frequency pooling: makes any mean-pooling sentence-transformers model contextual, without training."""

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn import Module

from ..data import Corpus, load_documents
from ..modeling import Context, ContextualModule
from ..modeling.context import as_context
from ..modeling.frequency_pooling import DEFAULT_SIZE, FrequencyPooling
from ..modeling.pooling import DEFAULT_FREQUENCY_SCALE


ModelClass = TypeVar("ModelClass", bound=SentenceTransformer)


class ContextualizedSentenceTransformer(SentenceTransformer):
    """
    A `SentenceTransformer` with context-frequency pooling, made by [`contextualize`].

    Its checkpoints contain the code of the pooling, so `SentenceTransformer(path, trust_remote_code=True)` loads them
    where this package is not installed.
    """

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Saves the model with the code that it needs without this package."""
        super().save(path, *args, **kwargs)
        _rewrite(Path(path) / "modules.json", _name_shipped_code)
        _rewrite(Path(path) / "README.md", _ask_for_remote_code)


def contextualize(
    model: SentenceTransformer | str | os.PathLike,
    corpus: Corpus | Context | None,
    *,
    size: int = DEFAULT_SIZE,
    frequency_scale: float | None = None,
    seed: int = 0,
) -> ContextualizedSentenceTransformer:
    """
    Gives a sentence-transformers model the word statistics of a corpus, without training.

    Mean pooling then down-weights tokens that occur in many documents: a token that occurs in the share `p` of the
    documents has the weight `a / (a + p)`. Encode queries and documents with the result. The given model stays
    unchanged; both share their weights.

    Args:
        model (`SentenceTransformer`, `str` or `os.PathLike`):
            A model with mean pooling, or its folder or Hub name.
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str`, `Path`, `Context` or `None`):
            The corpus: a list of texts, texts by id, a dataset with a column `text`, or the path of a file. Documents
            without text are skipped. Or a context of such a model. With `None`, pooling is the plain mean until
            `set_context(model, corpus)`.
        size (`int`, *optional*, defaults to `64`):
            Number of documents to sample; all of them if there are fewer.
        frequency_scale (`float`, *optional*):
            The scale `a`: the share of the documents at which a token has the weight 0.5. Defaults to the scale that
            the model already has, or 0.2.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sample.

    Returns:
        `ContextualizedSentenceTransformer`: The model, which encodes, saves and loads like any other.
    """
    model = load_if_path(model)
    name, pooling = _find_pooling(model)
    if frequency_scale is None:
        frequency_scale = DEFAULT_FREQUENCY_SCALE
        if isinstance(pooling, ContextualModule):
            frequency_scale = pooling.settings["frequency_scale"]
    frequency_pooling = FrequencyPooling(
        pooling.embedding_dimension, include_prompt=pooling.include_prompt, frequency_scale=frequency_scale
    )
    contextualized = with_module(model, name, frequency_pooling, ContextualizedSentenceTransformer)
    frequency_pooling.set_context(read_context(corpus), size=size, seed=seed)
    return contextualized


def load_if_path(model: SentenceTransformer | str | os.PathLike) -> SentenceTransformer:
    """Loads a model that is given by its folder or Hub name, without running code that it contains."""
    return SentenceTransformer(os.fspath(model)) if isinstance(model, str | os.PathLike) else model


def read_context(corpus: Corpus | Context | None) -> Sequence[str] | Context | None:
    """Reads the texts of a corpus. A context and `None` pass through."""
    return None if corpus is None else as_context(corpus) or load_documents(corpus)


def with_module(model: SentenceTransformer, name: str, module: Module, model_class: type[ModelClass]) -> ModelClass:
    """
    A copy of a model with one module replaced. Both share the other modules.

    Args:
        model (`SentenceTransformer`):
            The model, which stays unchanged.
        name (`str`):
            Name of the module to replace.
        module (`torch.nn.Module`):
            The module to put in its place.
        model_class (`type`):
            Class of the copy.
    """
    modules = OrderedDict(model.named_children())
    modules[name] = module
    return model_class(
        modules=modules,  # type: ignore[arg-type]  # the base class takes names too
        device=str(model.device),
        prompts=model.prompts,  # type: ignore[arg-type]  # `SentenceTransformer` also stores `None` as a prompt
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
        trust_remote_code=True,  # a trainer reads its own checkpoints, which have code
    )


def _find_pooling(model: SentenceTransformer) -> tuple[str, Pooling]:
    poolings = [(name, module) for name, module in model.named_children() if isinstance(module, Pooling)]
    if len(poolings) != 1 or not isinstance(model[0], Transformer):
        kinds = ", ".join(type(module).__name__ for module in model.children())
        raise ValueError(
            "Context-frequency pooling replaces the one `Pooling` after a `Transformer`, but the modules of this "
            f"model are: {kinds}. Use a model that pools the token vectors of an encoder."
        )
    name, pooling = poolings[0]
    if pooling.pooling_mode != "mean":
        raise ValueError(
            f"This model pools by {pooling.pooling_mode!r}, but token frequencies can only weight a mean. Use a model "
            "with mean pooling."
        )
    return name, pooling


def _name_shipped_code(modules: str) -> str:
    package = FrequencyPooling.__module__.rpartition(".")[0]
    return modules.replace(f'"{package}.frequency_pooling.', '"frequency_pooling.')


def _ask_for_remote_code(card: str) -> str:
    card = card.replace(ContextualizedSentenceTransformer.__name__, "SentenceTransformer")
    return re.sub(r'(SentenceTransformer\("[^"]*")\)', r"\1, trust_remote_code=True)", card)


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    if not path.is_file():
        return
    temporary_path = path.with_name(f".{path.name}.new")
    temporary_path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    os.replace(temporary_path, path)


__all__ = ["ContextualizedSentenceTransformer", "contextualize", "load_if_path", "read_context", "with_module"]
