"""
The second stage: embeds texts given a context.

Its sequence is `[context vectors][soft prompt][text tokens]`. Context vectors and soft prompt together are called the
context block. In joint attention the whole sequence goes through the backbone at once. In prefix attention the block
and the texts go through it separately (`context_attention.py`).

A text can compare its tokens with the documents if their vectors lie in one space. Context vectors therefore contain
the mean of the documents' token embeddings, and are standardised over the context: what all documents have in common
would hide what tells them apart.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .backbones import (
    added_to_inputs,
    build_backbone,
    first_position,
    has_learned_positions,
    move_padding_to_the_right,
)
from .configuration_cde import CDEConfig
from .context import Context
from .context_attention import RecordedBlock, block_masks, joint_masks, use_context_attention
from .pooling import mean_of_tokens, pooling_weights


class SecondStage(nn.Module):
    """Embeds texts given a context."""

    def __init__(self, config: CDEConfig):
        super().__init__()
        self.config = config
        hidden_size = config.hidden_size
        self.backbone = build_backbone(config.second_backbone)
        use_context_attention(self.backbone)
        if config.num_soft_prompts > 0:
            self.soft_prompt_projection = nn.Sequential(
                nn.Linear(hidden_size, hidden_size),
                nn.ReLU(),
                nn.Linear(hidden_size, config.num_soft_prompts * hidden_size),
            )
        if config.has_null_embedding:
            self.null_embedding = nn.Parameter(torch.empty(hidden_size))
        if config.context_attention == "prefix":
            num_layers = config.second_backbone.num_hidden_layers
            self.context_value_projections = nn.ModuleList(
                nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(num_layers)
            )
        self.output_projection = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size)
        )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        dataset_embeddings: Tensor | None = None,
        *,
        context: Context | None = None,
    ) -> Tensor:
        """
        Embeds texts given a context.

        Args:
            input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`):
                Token ids of the texts.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
                Zero at padding. Defaults to ones.
            dataset_embeddings (`torch.Tensor` of shape `(num_documents, hidden_size)`, *optional*):
                At most `context_size` first-stage vectors, as a context without token frequencies. In joint attention
                a leading batch dimension gives each text its own context.
            context (`Context`, *optional*):
                The context, instead of `dataset_embeddings`. Defaults to the empty context. The null embedding
                replaces missing documents. Without token frequencies, the pooling is the plain mean.

        Returns:
            `torch.Tensor` of shape `(batch_size, hidden_size)`: The embeddings, not normalised.
        """
        input_ids, attention_mask = move_padding_to_the_right(input_ids, attention_mask)
        if context is None:
            context = Context(dataset_embeddings)
        elif dataset_embeddings is not None:
            raise ValueError("Pass `context` or `dataset_embeddings`, not both.")
        if self.config.context_attention == "prefix":
            hidden_states = self._attend_to_block(input_ids, attention_mask, context)
        elif context.keys_values is not None:
            raise ValueError(
                "The context has the context block of prefix attention, but this model has "
                "`context_attention='joint'`. Encode the context with this model."
            )
        else:
            hidden_states = self._attend_jointly(input_ids, attention_mask, context.embeddings)
        # Trained with the plain mean, a model is better with frequencies at inference than if trained with them.
        pools_by_frequency = self.config.counts_tokens and not self.training
        weights = pooling_weights(
            input_ids,
            attention_mask,
            instruction_end_id=self.config.instruction_end_id,
            token_frequencies=context.token_frequencies if pools_by_frequency else None,
            frequency_scale=self.config.frequency_scale,
        )
        pooled = mean_of_tokens(hidden_states, weights)
        output = self.output_projection(pooled)
        return output + pooled if self.config.output_residual else output

    def encode_block(self, dataset_embeddings: Tensor | None = None) -> tuple[tuple[Tensor, Tensor], ...]:
        """
        Runs context and soft prompt through the backbone once and caches their keys and values.

        Gradients flow through the block to the context vectors. In training, all texts that use the block share one
        sample of dropped documents.

        Args:
            dataset_embeddings (`torch.Tensor` of shape `(num_documents, hidden_size)`, *optional*):
                First-stage vectors. The null embedding replaces missing ones. Defaults to no context.

        Returns:
            `tuple`: The `keys_values` of a [`Context`].
        """
        if self.config.context_attention != "prefix":
            raise ValueError(
                "Only prefix attention has a context block, but this model has `context_attention='joint'`. Load or "
                "build it with `context_attention='prefix'`."
            )
        if dataset_embeddings is not None and dataset_embeddings.dim() != 2:
            raise ValueError(
                "In prefix attention all texts share one context: `dataset_embeddings` must have the shape "
                f"(num_documents, {self.config.hidden_size}), got {tuple(dataset_embeddings.shape)}."
            )
        context, is_document = self._context_tokens(dataset_embeddings, num_contexts=1)
        block = self._block_embeddings(context)
        recorded = RecordedBlock()
        self.backbone(
            inputs_embeds=block,
            attention_mask=block_masks(self.backbone),
            position_ids=self._position_ids(0, block.device),
            recorded=recorded,
        )
        # Contiguous memory is faster to read for every text that follows.
        keys_values = tuple(
            (key.contiguous(), self._context_values(value, is_document, index).contiguous())
            for index, (key, value) in sorted(recorded.keys_values.items())
        )
        if block.requires_grad and not keys_values[-1][0].requires_grad:
            raise ValueError(
                "Reentrant gradient checkpointing drops the gradients of the context. Enable it with "
                "`gradient_checkpointing_kwargs={'use_reentrant': False}`."
            )
        return keys_values

    def _attend_to_block(self, input_ids: Tensor, attention_mask: Tensor, context: Context) -> Tensor:
        keys_values = context.keys_values
        if keys_values is None:
            keys_values = self.encode_block(context.embeddings)
        self._check_block(keys_values)
        position_ids = self._position_ids(input_ids.shape[1], input_ids.device)
        output = self.backbone(
            inputs_embeds=self._embed_text(input_ids),
            attention_mask=attention_mask,
            position_ids=position_ids[:, self.config.num_block_tokens :],
            context_keys_values=keys_values,
        )
        return output.last_hidden_state

    def _context_values(self, value: Tensor, is_document: Tensor, layer_index: int) -> Tensor:
        """
        Values of the context that texts attend to: what tells a document from the others, plus a learned projection.

        The projection is zero at first. Null embeddings and soft prompts have it alone, so without documents an
        untrained model is equal to its encoder.

        Args:
            value (`torch.Tensor` of shape `(1, num_heads, num_block_tokens, head_dim)`):
                Values of the context block.
            is_document (`torch.Tensor` of shape `(1, context_size)`):
                Which of the context's vectors are documents.
            layer_index (`int`):
                The layer.
        """
        projected = self.context_value_projections[layer_index](value.transpose(1, 2).flatten(2))
        projected = projected.unflatten(2, (value.shape[1], -1)).transpose(1, 2)
        share = nn.functional.pad(is_document, (0, self.config.num_soft_prompts))[:, None, :, None].to(value.dtype)
        mean = (value * share).sum(dim=2, keepdim=True) / share.sum().clamp(min=1)
        return projected + (value - mean) * share

    def _attend_jointly(self, input_ids: Tensor, attention_mask: Tensor, dataset_embeddings: Tensor | None) -> Tensor:
        num_block_tokens = self.config.num_block_tokens
        context, _ = self._context_tokens(dataset_embeddings, num_contexts=input_ids.shape[0])
        inputs_embeds = torch.cat([self._block_embeddings(context), self._embed_text(input_ids)], dim=1)
        visible = nn.functional.pad(attention_mask, (num_block_tokens, 0), value=1)
        masks: Tensor | dict[str, Any] = visible
        if not self.config.context_as_sequence:
            masks = joint_masks(self.backbone, inputs_embeds, visible, num_block_tokens)
        output = self.backbone(
            inputs_embeds=inputs_embeds,
            attention_mask=masks,
            position_ids=self._position_ids(input_ids.shape[1], input_ids.device),
        )
        return output.last_hidden_state[:, num_block_tokens:]

    def _context_tokens(self, dataset_embeddings: Tensor | None, num_contexts: int) -> tuple[Tensor, Tensor]:
        """
        Contexts padded with the null embedding, of shape `(num_contexts, context_size, hidden_size)`, and which of
        their vectors are documents.
        """
        config = self.config
        num_documents = self._check_context(dataset_embeddings, num_contexts)
        reference: Any = self.backbone.get_input_embeddings().weight
        is_document = torch.ones(num_contexts, num_documents, dtype=torch.bool, device=reference.device)
        if dataset_embeddings is None or num_documents == 0:
            is_document = is_document.new_zeros(num_contexts, config.context_size)
            return self.null_embedding.expand(num_contexts, config.context_size, -1), is_document
        tokens = dataset_embeddings.to(reference.dtype).expand(num_contexts, -1, -1)
        may_miss_some = self.training and config.has_null_embedding
        if num_documents == config.context_size and not config.context_in_token_space and not may_miss_some:
            return tokens, is_document
        if config.context_in_token_space:
            vectors = standardize(dataset_embeddings).expand(num_contexts, -1, -1)
            # What equals all others tells nothing, and layer normalisation would blow up its rounding errors.
            is_document, tokens = vectors.abs().amax(dim=-1) > 0.01, vectors.to(reference.dtype)
        if self.training:
            # Sampled even at probability zero, so that every parameter of the model has a gradient in each step.
            is_kept = torch.rand(is_document.shape, device=reference.device) >= config.sequence_dropout_prob
            is_document = is_document & is_kept
        num_missing = config.context_size - num_documents
        is_document = nn.functional.pad(is_document, (0, num_missing))
        tokens = nn.functional.pad(tokens, (0, 0, 0, num_missing))
        return torch.where(is_document.unsqueeze(-1), tokens, self.null_embedding), is_document

    def _block_embeddings(self, context: Tensor) -> Tensor:
        """Context and soft prompt as inputs of the backbone, minus what its embedding layer will add."""
        config = self.config
        if config.num_soft_prompts > 0:
            weight: Any = self.backbone.get_input_embeddings().weight
            ones = weight.new_ones(1, config.hidden_size)
            soft_prompt = self.soft_prompt_projection(ones).view(1, config.num_soft_prompts, config.hidden_size)
            context = torch.cat([context, soft_prompt.expand(context.shape[0], -1, -1)], dim=1)
        return context - added_to_inputs(self.backbone)

    def _embed_text(self, input_ids: Tensor) -> Tensor:
        if self.config.normalize_text_twice:
            embeddings: Any = self.backbone.embeddings
            return embeddings(input_ids)
        return self.backbone.get_input_embeddings()(input_ids)

    def _position_ids(self, text_length: int, device: torch.device) -> Tensor:
        """
        Positions of context block and text.

        Rotary positions: the context is at position 0, which rotates by nothing. Soft prompt and text continue from
        `context_size`. Learned positions: [`added_to_inputs`] removes the block's position, and the text starts where
        it would start without a block.

        Returns:
            `torch.Tensor` of shape `(1, num_block_tokens + text_length)`.
        """
        config = self.config
        if has_learned_positions(self.backbone.config):
            start = first_position(self.backbone)
            positions = torch.arange(text_length, device=device) + start
            return nn.functional.pad(positions, (config.num_block_tokens, 0), value=start).unsqueeze(0)
        positions = torch.arange(config.num_block_tokens + text_length, device=device)
        if not config.context_as_sequence:
            positions = positions * (positions >= config.context_size)
        return positions.unsqueeze(0)

    def _check_context(self, dataset_embeddings: Tensor | None, num_contexts: int) -> int:
        """Raises an error if a context does not fit, and returns its number of documents."""
        config = self.config
        if dataset_embeddings is None:
            num_documents = 0
        else:
            width = config.hidden_size
            shape = tuple(dataset_embeddings.shape)
            if len(shape) not in (2, 3) or shape[-1] != width or (len(shape) == 3 and shape[0] != num_contexts):
                raise ValueError(
                    f"`dataset_embeddings` must have the shape (num_documents, {width}), or ({num_contexts}, "
                    f"num_documents, {width}) for a context per text, got {shape}. Pass the output of "
                    "`first_stage_model`."
                )
            num_documents = shape[-2]
        if num_documents > config.context_size:
            raise ValueError(
                f"The context has {num_documents} documents, but this model reads at most {config.context_size}. "
                "Sample some with `cde_hf.sample_documents`."
            )
        if num_documents < config.context_size and not config.has_null_embedding:
            raise ValueError(
                f"This model has no null embedding to replace missing context documents. It needs exactly "
                f"{config.context_size} of them, got {num_documents}. Repeat documents to fill the context."
            )
        return num_documents

    def _check_block(self, keys_values: tuple[tuple[Tensor, Tensor], ...]) -> None:
        sizes = (len(keys_values), keys_values[0][0].shape[2])
        expected = (self.backbone.config.num_hidden_layers, self.config.num_block_tokens)
        if sizes != expected:
            raise ValueError(
                f"The context block has {sizes[0]} layers of {sizes[1]} tokens, but this model needs {expected[0]} "
                f"layers of {expected[1]}. It belongs to another model. Encode the context again."
            )


def standardize(vectors: Tensor) -> Tensor:
    """
    Shifts and scales vectors to mean 0 and standard deviation 1 in each dimension. Equal vectors become zero.

    Args:
        vectors (`torch.Tensor` of shape `(..., num_vectors, dim)`):
            The vectors.
    """
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    centred = vectors - vectors.mean(dim=-2, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dim=-2, keepdim=True) + 1e-6)


__all__ = ["SecondStage", "standardize"]
