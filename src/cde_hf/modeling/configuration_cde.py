"""Configuration of a contextual document embedding model: two backbones and how the context connects them."""

import copy
import os
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .backbones import LEARNED_POSITION_TYPES, ROTARY_TYPES
from .pooling import DEFAULT_FREQUENCY_SCALE


@strict
class CDEConfig(PreTrainedConfig):
    r"""
    Configuration of a [`CDEModel`].

    It describes the network, not a training run. Combinations that cannot work raise an error at construction.
    `from_pretrained` also reads the released checkpoints `jxm/cde-small-v1` and `jxm/cde-small-v2`.

    Args:
        first_stage_config (`dict` or `PreTrainedConfig`, *optional*):
            Backbone that embeds the context documents. Defaults to NomicBERT at the paper's size.
        second_stage_config (`dict` or `PreTrainedConfig`, *optional*):
            Backbone that embeds the texts given the context. Defaults to NomicBERT at the paper's size.
        context_size (`int`, *optional*, defaults to `64`):
            Maximum number of context documents.
        num_soft_prompts (`int`, *optional*, defaults to `8`):
            Number of learned vectors between context and text.
        context_attention (`str`, *optional*, defaults to `"prefix"`):
            `"joint"`: context and text attend to each other, as in the paper. `"prefix"`: context and soft prompt
            attend only to each other, so their keys and values are computed once and reused for every text. Texts
            attend to them in a softmax of its own, which adds nothing as long as a model is untrained and has no
            context documents.
        context_in_token_space (`bool`, *optional*, defaults to `True`):
            Whether context vectors lie in the space of the second stage's token embeddings: the mean of a document's
            token embeddings plus the first stage's output, standardised over the context. A document that does not
            differ from the others then counts as missing. Needs one vocabulary for both stages. If `False`, they are
            the first stage's output, as in the released weights.
        pooling (`str`, *optional*, defaults to `"mean"`):
            `"mean"`: the mean of the text tokens. `"context_frequency"`: a weighted mean that down-weights tokens
            that occur in many context documents. A token has weight `a / (a + p)`, where `p` is the share of the
            context documents that contain it and `a` is `frequency_scale`. In training mode it is the
            plain mean: a model that is trained so gains more from the frequencies at inference.
        frequency_scale (`float`, *optional*, defaults to `0.2`):
            Frequency at which a token has weight one half. `math.inf` gives the plain mean.
        instruction_end_id (`int`, *optional*):
            Id of the token that ends an instruction such as `search_query:`. Tokens up to its first occurrence are
            excluded from the pooling, but not from the attention.
        output_residual (`bool`, *optional*, defaults to `False`):
            Whether the pooled vector is added to the output of the second stage's head.
        has_first_stage (`bool`, *optional*, defaults to `True`):
            Whether the checkpoint contains the first stage. A checkpoint saved with its context does not need it.
        has_null_embedding (`bool`, *optional*, defaults to `True`):
            Whether the model has a learned vector that replaces missing context documents.
        sequence_dropout_prob (`float`, *optional*, defaults to `0.005`):
            Probability of replacing a context document by the null embedding during training.
        context_as_sequence (`bool`, *optional*, defaults to `False`):
            Whether context tokens have ordinary positions. Their order then matters, and local attention layers see
            only the nearest of them. The released generation-2 weights were trained this way.
        normalize_text_twice (`bool`, *optional*, defaults to `False`):
            Whether text embeddings pass through ModernBERT's embedding norm both before and after they are
            concatenated with the context. The released generation-2 weights were trained this way.
        initializer_range (`float`, *optional*, defaults to `0.02`):
            Standard deviation of the initial weights outside the backbones.

    Example:

    ```python
    >>> from cde_hf import CDEConfig
    >>> tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    >>> config = CDEConfig(first_stage_config=tiny, second_stage_config=tiny, context_size=16)
    >>> config.second_stage_config.model_type
    'nomic_bert'
    >>> config.num_block_tokens
    24

    ```
    """

    model_type = "cde"
    attribute_map = {"transductive_corpus_size": "context_size"}  # the name mteb's `CDEWrapper` reads
    sub_configs_defaults = {
        "first_stage_config": SubConfigSpec(config_class=AutoConfig, model_type="nomic_bert"),
        "second_stage_config": SubConfigSpec(config_class=AutoConfig, model_type="nomic_bert"),
    }

    first_stage_config: dict | PreTrainedConfig | None = None
    second_stage_config: dict | PreTrainedConfig | None = None
    context_size: int = 64
    num_soft_prompts: int = 8
    context_attention: Literal["prefix", "joint"] = "prefix"
    context_in_token_space: bool = True
    pooling: Literal["mean", "context_frequency"] = "mean"
    frequency_scale: float | int = DEFAULT_FREQUENCY_SCALE
    instruction_end_id: int | None = None
    output_residual: bool = False
    has_first_stage: bool = True
    has_null_embedding: bool = True
    sequence_dropout_prob: float | int = 0.005
    context_as_sequence: bool = False
    normalize_text_twice: bool = False
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        # Fields of earlier checkpoints. The base class would keep them.
        lexical_size, _ = kwargs.pop("lexical_size", 0), kwargs.pop("lexical_weight", None)
        if lexical_size > 0:
            raise ValueError(
                f"The configuration has `lexical_size={lexical_size}`, but this version no longer has the lexical "
                "part. Set it to 0 for embeddings without it, or use the version of cde-hf that saved the model."
            )
        if kwargs.pop("separate_context", None) is not None:
            if self.context_attention == "prefix":
                raise ValueError(
                    "The configuration has `separate_context`, which only an earlier form of prefix attention had. "
                    "Train the model again, or use the version of cde-hf that saved it."
                )
            self.context_in_token_space = False
        # Neither stage shares its configuration with the other or with the caller.
        self.first_stage_config = copy.deepcopy(self.first_stage_config)
        self.second_stage_config = copy.deepcopy(self.second_stage_config)
        super().__post_init__(**kwargs)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        config_dict, other_kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if config_dict.keys() >= {"embedder", "transductive_corpus_size"}:
            try:  # checkpoints do not contain that file
                from cde_hf.modeling.released_layouts import read_released_config
            except ImportError as error:
                raise ImportError("Released weights need the package. Install it: `pip install cde-hf`.") from error
            config_dict = read_released_config(config_dict, pretrained_model_name_or_path, **kwargs)
        elif config_dict.get("model_type", cls.model_type) != cls.model_type:
            raise ValueError(
                f"`{pretrained_model_name_or_path}` is a model of type `{config_dict['model_type']}`, not a CDE "
                "checkpoint. Build a CDE model from an encoder with `CDEModel.from_biencoder`."
            )
        return config_dict, other_kwargs

    def to_dict(self) -> dict[str, Any]:
        """Serializes the configuration without `_name_or_path`, which may be a private folder."""
        config_dict = super().to_dict()
        for part in (config_dict, config_dict["first_stage_config"], config_dict["second_stage_config"]):
            part.pop("_name_or_path", None)
        return config_dict

    @property
    def first_backbone(self) -> PreTrainedConfig:
        """`first_stage_config`, which is a `PreTrainedConfig` after construction."""
        config: Any = self.first_stage_config
        return config

    @property
    def second_backbone(self) -> PreTrainedConfig:
        """`second_stage_config`, which is a `PreTrainedConfig` after construction."""
        config: Any = self.second_stage_config
        return config

    @property
    def counts_tokens(self) -> bool:
        """Whether the pooling needs the token frequencies of the context."""
        return self.pooling == "context_frequency"

    @property
    def hidden_size(self) -> int:
        """Size of first-stage vectors, of the second stage and of the embeddings."""
        return self.second_backbone.hidden_size

    @property
    def vocab_size(self) -> int:
        """Size of the second stage's vocabulary and of the token frequencies."""
        return self.second_backbone.vocab_size

    @property
    def num_block_tokens(self) -> int:
        """Number of positions before the text: context and soft prompt."""
        return self.context_size + self.num_soft_prompts

    def validate_sizes(self) -> None:
        if self.context_size < 1:
            raise ValueError(f"`context_size` must be at least 1, got {self.context_size}.")
        if self.num_soft_prompts < 0:
            raise ValueError(f"`num_soft_prompts` must not be negative, got {self.num_soft_prompts}.")

    def validate_backbones(self) -> None:
        supported = (*ROTARY_TYPES, *LEARNED_POSITION_TYPES)
        for name in ("first_stage_config", "second_stage_config"):
            backbone_config = getattr(self, name)
            if backbone_config.model_type not in supported:
                raise ValueError(
                    f"`{name}` has type `{backbone_config.model_type}`, which is not a supported bidirectional "
                    f"encoder. Use one of {', '.join(supported)}."
                )
            if getattr(backbone_config, "is_decoder", False):
                raise ValueError(
                    f"`{name}` has `is_decoder=True`, but the backbones must be bidirectional. Set it to `False`."
                )

    def validate_null_embedding(self) -> None:
        if self.context_in_token_space and not self.has_null_embedding:
            raise ValueError(
                "`context_in_token_space=True` needs the null embedding for documents that tell nothing, but "
                "`has_null_embedding` is `False`. Set one of them to the other's value."
            )

    def validate_dropout(self) -> None:
        probability = self.sequence_dropout_prob
        if not 0 <= probability <= 1:
            raise ValueError(f"`sequence_dropout_prob` must be a probability between 0 and 1, got {probability}.")
        if probability > 0 and not self.has_null_embedding:
            raise ValueError(
                f"`sequence_dropout_prob={probability}` replaces context documents by the null embedding, but "
                "`has_null_embedding` is `False`. Set `sequence_dropout_prob=0.0` or `has_null_embedding=True`."
            )

    def validate_pooling(self) -> None:
        if not self.frequency_scale > 0:
            raise ValueError(f"`frequency_scale` must be positive, got {self.frequency_scale}.")
        if self.instruction_end_id is not None and not 0 <= self.instruction_end_id < self.vocab_size:
            raise ValueError(
                f"`instruction_end_id` must be a token id below the vocabulary size {self.vocab_size}, got "
                f"{self.instruction_end_id}. Use `tokenizer.convert_tokens_to_ids(':')` or `None`."
            )

    def validate_vocabularies(self) -> None:
        sizes = self.first_backbone.vocab_size, self.second_backbone.vocab_size
        if sizes[0] == sizes[1]:
            return
        for name, needs_one, other in (
            ("pooling", self.counts_tokens, "mean"),
            ("context_in_token_space", self.context_in_token_space, False),
        ):
            if needs_one:
                raise ValueError(
                    f"`{name}={getattr(self, name)!r}` needs one vocabulary for both stages, but they have {sizes[0]} "
                    f"and {sizes[1]} tokens. Use one tokenizer for both backbones, or `{name}={other!r}`."
                )

    def validate_context_as_sequence(self) -> None:
        if not self.context_as_sequence:
            return
        if self.context_attention == "prefix":
            raise ValueError(
                "In prefix attention the context is an unordered set, but `context_as_sequence` is `True`. Set it to "
                "`False`, or use `context_attention='joint'`."
            )
        if self.second_backbone.model_type in LEARNED_POSITION_TYPES:
            raise ValueError(
                f"`context_as_sequence=True` needs a second stage with rotary positions ({', '.join(ROTARY_TYPES)}), "
                f"got `{self.second_backbone.model_type}`. Set it to `False`."
            )

    def validate_normalize_text_twice(self) -> None:
        if self.normalize_text_twice and self.second_backbone.model_type != "modernbert":
            raise ValueError(
                "`normalize_text_twice=True` is for the released ModernBERT weights, but the second stage is "
                f"`{self.second_backbone.model_type}`. Set it to `False`."
            )


__all__ = ["CDEConfig"]
