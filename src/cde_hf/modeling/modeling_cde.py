"""
Contextual document embeddings: the first stage embeds context documents, the second stage embeds texts given them.

1. First stage: backbone, mean over the tokens, two-layer head. It makes one vector per context document, to which
   the mean of the document's token embeddings in the second stage is added.
2. Second stage: backbone over `[context vectors][soft prompt][text tokens]`, pooling over the text tokens, two-layer
   head. Context vectors and soft prompt together are called the context block.

The context is a set: its vectors have no position. Missing documents are replaced by the null embedding.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization
from transformers.utils import ModelOutput

from .backbones import build_backbone, move_padding_to_the_right
from .configuration_cde import CDEConfig
from .context import Context, fingerprint, weight_versions
from .context_attention import check_attention
from .pooling import count_token_frequencies, mean_of_tokens
from .second_stage import SecondStage


# Names of parameters in the released weights, and ours. transformers itself renames those inside of a backbone.
_RELEASED_NAMES = {
    r"^first_stage_model\.embedder\.": "first_stage_model.backbone.",
    r"^first_stage_model\.mlp\.": "first_stage_model.output_projection.",
    r"^second_stage_model\.prompt_projection\.": "second_stage_model.soft_prompt_projection.",
    r"^second_stage_model\.sequence_dropout_null_embedding$": "second_stage_model.null_embedding",
}


@dataclass
class CDEOutput(ModelOutput):
    """
    Output of [`CDEModel`]. A field is `None` if the inputs did not suffice to compute it.

    Args:
        embeddings (`torch.Tensor` of shape `(batch_size, hidden_size)`, *optional*):
            Embeddings of the texts, not normalised.
        context_embeddings (`torch.Tensor` of shape `(num_documents, hidden_size)`, *optional*):
            First-stage vectors of the context documents.
        context (`Context`, *optional*):
            The context, in prefix attention with its context block.
    """

    embeddings: Tensor | None = None
    context_embeddings: Tensor | None = None
    context: Context | None = None


class FirstStage(nn.Module):
    """Embeds context documents, each independently of the others."""

    # The second stage's backbone, whose token embeddings the vectors contain. In a tuple, so that it is no submodule.
    reader: tuple[PreTrainedModel, ...] = ()

    def __init__(self, config: CDEConfig):
        super().__init__()
        hidden_size = config.first_backbone.hidden_size
        self.backbone = build_backbone(config.first_backbone)
        # The last layer also projects to the second stage's hidden size. Standardised vectors would lose its bias.
        last = nn.Linear(hidden_size, config.hidden_size, bias=not config.context_in_token_space)
        self.output_projection = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.GELU(), last)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """
        Embeds context documents.

        Args:
            input_ids (`torch.Tensor` of shape `(num_documents, sequence_length)`):
                Token ids.
            attention_mask (`torch.Tensor` of shape `(num_documents, sequence_length)`, *optional*):
                Zero at padding. Defaults to ones.

        Returns:
            `torch.Tensor` of shape `(num_documents, hidden_size)`: One vector per document.
        """
        input_ids, attention_mask = move_padding_to_the_right(input_ids, attention_mask)
        hidden_states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        vectors = self.output_projection(mean_of_tokens(hidden_states, attention_mask))
        for backbone in self.reader:
            vectors = vectors + mean_of_tokens(backbone.get_input_embeddings()(input_ids), attention_mask)
        return vectors


class CDEModel(PreTrainedModel):
    """
    Contextual document embedding model.

    `forward` computes as much as its inputs allow, so that a wrapper such as `DistributedDataParallel` can run every
    part of the network:

    - Context documents alone give their first-stage vectors.
    - First-stage vectors alone give the context block, in prefix attention.
    - Texts give embeddings, with any of these as context or without one.

    Example:

    ```python
    >>> import torch
    >>> from cde_hf import CDEConfig, CDEModel
    >>> tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    >>> stages = {"first_stage_config": tiny, "second_stage_config": tiny}
    >>> model = CDEModel(CDEConfig(**stages, context_size=4, context_attention="prefix")).eval()
    >>> context = model.encode_context(torch.randint(1000, (4, 12)))
    >>> model.encode_texts(torch.randint(1000, (2, 7)), context=context).shape
    torch.Size([2, 32])

    ```
    """

    config: CDEConfig
    config_class = CDEConfig
    base_model_prefix = "cde"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: CDEConfig):
        check_attention(config.second_backbone, config.second_backbone._attn_implementation)
        super().__init__(config)
        self.first_stage_model = FirstStage(config) if config.has_first_stage else None
        self.second_stage_model = SecondStage(config)
        if self.first_stage_model is not None and config.context_in_token_space:
            self.first_stage_model.reader = (self.second_stage_model.backbone,)
        self._checked: tuple[Context, tuple[tuple[int, int], ...]] | None = None
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SecondStage):
            if self.config.has_null_embedding:
                initialization.normal_(module.null_embedding, std=self.config.initializer_range)
            if self.config.context_attention == "prefix":
                for projection in module.context_value_projections:
                    initialization.zeros_(projection.get_parameter("weight"))
        elif isinstance(module, FirstStage) and self.config.context_in_token_space:
            # A random head would take the context vectors out of the token space, and the model would never read them.
            initialization.zeros_(module.output_projection[-1].get_parameter("weight"))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike | None, *args: Any, **kwargs: Any
    ) -> "CDEModel":
        """Loads a checkpoint from a folder or the Hub, in our layout or in the released one."""
        kwargs.setdefault("key_mapping", _RELEASED_NAMES)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Saves the checkpoint in our layout, even if it was loaded from a released one."""
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_biencoder(
        cls, name_or_path: str | Path, *, first_stage_layers: int | None = None, **config_fields: Any
    ) -> "CDEModel":
        """
        Builds an untrained model from an encoder. Both stages start with its weights.

        The output head has a residual connection and is zero-initialised, so embeddings start as the mean of the text
        tokens. In prefix attention the model starts out identical to the encoder, as long as it has no context.

        Args:
            name_or_path (`str` or `Path`):
                Folder or Hub name of an encoder or a sentence-transformers model.
            first_stage_layers (`int`, *optional*):
                Number of encoder layers to keep in the first stage. Defaults to all.
            config_fields:
                Fields of [`CDEConfig`] other than the backbones.

        Returns:
            `CDEModel`: The model, in evaluation mode.
        """
        try:  # checkpoints do not contain that file
            from cde_hf.modeling.from_encoder import build_from_encoder
        except ImportError as error:
            raise ImportError("`from_biencoder` needs the package. Install it: `pip install cde-hf`.") from error
        return build_from_encoder(cls, name_or_path, first_stage_layers, config_fields)

    def set_attn_implementation(
        self, attn_implementation: str | dict[str, str], allow_all_kernels: bool = False
    ) -> None:
        """
        Sets transformers' attention implementation for both stages, or for one of them.

        Args:
            attn_implementation (`str` or `dict[str, str]`):
                Name of an implementation, or a name for `"first_stage_config"`, `"second_stage_config"` or each.
            allow_all_kernels (`bool`, *optional*, defaults to `False`):
                Whether the first stage may load kernels from unverified repositories on the Hub.
        """
        if isinstance(attn_implementation, dict):
            requested = attn_implementation.get("second_stage_config")
        else:
            requested = attn_implementation
        check_attention(self.config.second_backbone, requested)
        super().set_attn_implementation(attn_implementation, allow_all_kernels=allow_all_kernels)

    def get_input_embeddings(self) -> nn.Module:
        return self.second_stage_model.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.second_stage_model.backbone.set_input_embeddings(value)

    def context_parameters(self) -> Iterator[nn.Parameter]:
        """The weights that the vectors of context documents depend on."""
        if self.first_stage_model is not None:
            yield from self.first_stage_model.parameters()
        if self.config.context_in_token_space:
            yield from self.get_input_embeddings().parameters()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        context_input_ids: Tensor | None = None,
        context_attention_mask: Tensor | None = None,
        dataset_embeddings: Tensor | None = None,
        context: Context | None = None,
        return_dict: bool | None = None,
    ) -> CDEOutput | tuple:
        """
        Embeds context documents, texts, or both.

        Args:
            input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
                Token ids of the texts.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
                Zero at padding, which may be on either side. Defaults to ones.
            context_input_ids (`torch.Tensor` of shape `(num_documents, context_length)`, *optional*):
                Token ids of the context documents.
            context_attention_mask (`torch.Tensor` of shape `(num_documents, context_length)`, *optional*):
                Zero at padding. Defaults to ones.
            dataset_embeddings (`torch.Tensor` of shape `(num_documents, hidden_size)`, *optional*):
                First-stage vectors, instead of `context_input_ids`.
            context (`Context`, *optional*):
                The context, instead of `context_input_ids` or `dataset_embeddings`.
            return_dict (`bool`, *optional*):
                Whether to return a [`CDEOutput`] instead of a tuple. Defaults to the configuration's value.

        Returns:
            [`CDEOutput`]: Everything that the inputs suffice to compute.
        """
        given = (context_input_ids, dataset_embeddings, context)
        if sum(each is not None for each in given) > 1:
            raise ValueError("Pass one of `context_input_ids`, `dataset_embeddings` and `context`, not several.")
        if input_ids is None and all(each is None for each in given):
            raise ValueError(
                "There is nothing to embed. Pass `input_ids`, `context_input_ids`, `dataset_embeddings` or `context`."
            )
        if context_input_ids is not None:
            context = Context(self._embed_documents(context_input_ids, context_attention_mask))
            if input_ids is not None:
                context = replace(
                    context, token_frequencies=self._count_tokens(context_input_ids, context_attention_mask)
                )
        elif dataset_embeddings is not None:
            self._check_finite(dataset_embeddings)
            context = Context(dataset_embeddings)
        else:
            context = self._check_context(Context() if context is None else context)
        is_context_alone = input_ids is None and context_input_ids is not None
        if self.config.context_attention == "prefix" and context.keys_values is None and not is_context_alone:
            context = replace(context, keys_values=self.second_stage_model.encode_block(context.embeddings))
        embeddings = None
        if input_ids is not None:
            embeddings = self.second_stage_model(input_ids, attention_mask, context=context)
        output = CDEOutput(embeddings, context.embeddings, context)
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return output if return_dict else output.to_tuple()

    @torch.no_grad()
    def encode_context(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        mini_batch_size: int = 32,
    ) -> Context:
        """
        Encodes context documents once, for use with any number of texts.

        Args:
            input_ids (`torch.Tensor` of shape `(num_documents, sequence_length)`):
                Token ids of at most `context_size` documents.
            attention_mask (`torch.Tensor` of shape `(num_documents, sequence_length)`, *optional*):
                Zero at padding. Defaults to ones.
            mini_batch_size (`int`, *optional*, defaults to `32`):
                Number of documents per forward pass.

        Returns:
            `Context`: The context, for [`CDEModel.encode_texts`].
        """
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mini_batches = zip(input_ids.split(mini_batch_size), attention_mask.split(mini_batch_size), strict=True)
        embeddings = torch.cat([self._embed_documents(ids, mask) for ids, mask in mini_batches])
        context = Context(
            embeddings,
            self._count_tokens(input_ids, attention_mask),
            num_documents=len(input_ids),
            fingerprint=fingerprint(self.second_stage_model),
        )
        return self.prepare_context(context)

    @torch.no_grad()
    def prepare_context(self, context: Context) -> Context:
        """
        Moves a context to the model's device and adds the context block, if the model has prefix attention.

        Args:
            context (`Context`):
                A context of this model, for example one loaded from disk.

        Returns:
            `Context`: The same context, ready for [`CDEModel.encode_texts`].
        """
        context = replace(self._check_context(context), fingerprint=fingerprint(self.second_stage_model))
        if self.config.context_attention != "prefix" or context.keys_values is not None:
            return context
        return replace(context, keys_values=self.second_stage_model.encode_block(context.embeddings))

    @torch.no_grad()
    def encode_texts(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, context: Context | None = None
    ) -> Tensor:
        """
        Embeds texts given an encoded context. Call the model itself for gradients.

        Args:
            input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`):
                Token ids of the texts.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
                Zero at padding. Defaults to ones.
            context (`Context`, *optional*):
                Result of [`CDEModel.encode_context`]. Defaults to the empty context.

        Returns:
            `torch.Tensor` of shape `(batch_size, hidden_size)`: The embeddings, not normalised.
        """
        return self(input_ids, attention_mask, context=context, return_dict=True).embeddings

    def train(self, mode: bool = True) -> "CDEModel":
        """Sets training mode or evaluation mode. A context is checked again after training."""
        # Fused optimizers write weights without counting it.
        self._checked = None if mode else self._checked
        return super().train(mode)

    def _embed_documents(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        if self.first_stage_model is None:
            raise ValueError(
                "This checkpoint was saved with its context and without the first stage, so it cannot encode another "
                "context. Load the checkpoint that it was made from."
            )
        return self.first_stage_model(input_ids, attention_mask)

    def _count_tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        if not self.config.counts_tokens:
            return None
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return count_token_frequencies(input_ids, attention_mask, self.config.vocab_size)

    def _check_context(self, context: Context) -> Context:
        """
        Refuses a context of another model, and moves it to the model's device.

        A context is checked once, and again when weights were written: reading weights before every batch would stall
        an accelerator. Contexts without a fingerprint, as in a training step, are not checked.
        """
        if torch.compiler.is_compiling():
            return context
        if context.fingerprint is not None and not self._is_checked(context):
            if context.fingerprint != fingerprint(self.second_stage_model):
                raise ValueError(
                    "The context was made by another model, or by this model before its weights were changed. Encode "
                    "the context again."
                )
            if context.embeddings is not None:
                self._check_finite(context.embeddings)
            # Bare first-stage vectors have no number of documents and never come with frequencies.
            if self.config.counts_tokens and context.token_frequencies is None and context.num_documents > 0:
                raise ValueError(
                    "The context has no token frequencies, which this model needs for its pooling. Encode the context "
                    "again."
                )
            self._checked = None if self.training else (context, weight_versions(self.second_stage_model))
        return context.to(self.device)

    def _is_checked(self, context: Context) -> bool:
        checked = self._checked
        return checked is not None and checked[0] is context and checked[1] == weight_versions(self.second_stage_model)

    def _check_finite(self, dataset_embeddings: Tensor) -> None:
        # Training checks the loss instead, because reading a value here would stall an accelerator.
        if not self.training and not torch.compiler.is_compiling() and not dataset_embeddings.isfinite().all():
            raise ValueError(
                "`dataset_embeddings` contains NaN or infinite values. Check the context documents' vectors."
            )


__all__ = ["CDEModel", "CDEOutput"]
