"""One way to run contextual models and plain encoders, bare or wrapped for distribution."""

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..modeling import CDEConfig, CDEModel, ContextBlock
from ..modeling.backbones import longest_text
from ..modeling.corpus_context import count_token_frequencies
from ..modeling.pooling import mean_of_tokens
from .mini_batches import Texts


@dataclass(frozen=True)
class StepContext:
    """
    What the texts of one step see beside themselves: nothing, context vectors, or a context block made of them.

    Args:
        embeddings (`torch.Tensor` of shape `(num_documents, context_embedding_size)`, *optional*):
            First-stage vectors, in joint attention.
        token_frequencies (`torch.Tensor` of shape `(vocab_size,)`, *optional*):
            Share of the context documents that contain each token, in joint attention.
        block (`ContextBlock`, *optional*):
            The context block, in prefix attention.
    """

    embeddings: Tensor | None = None
    token_frequencies: Tensor | None = None
    block: ContextBlock | None = None


class Encoder:
    """
    A model under training: a [`CDEModel`], or any encoder of transformers as a biencoder with mean pooling.

    All calls go through the wrapped model's `forward`, which is where distribution, autocast and compilation live.

    Args:
        model (`nn.Module`):
            The model, as the trainer wrapped it.
        bare_model (`PreTrainedModel`):
            The same one without wrappers.
    """

    def __init__(self, model: nn.Module, bare_model: PreTrainedModel):
        self.model = model
        self.config: CDEConfig | None = bare_model.config if is_contextual(bare_model) else None
        config = bare_model.config
        self.embedding_size: int = config.embedding_size if self.config is not None else config.hidden_size
        self.trains_first_stage = self.has_context and any(
            parameter.requires_grad for parameter in bare_model.first_stage_model.parameters()
        )

    @property
    def has_context(self) -> bool:
        """Whether the model reads a context."""
        return self.config is not None

    @property
    def has_prefix(self) -> bool:
        """Whether the context is a block that is computed once for all texts."""
        return self.config is not None and self.config.context_attention == "prefix"

    def embed_context(self, documents: Texts) -> Tensor:
        """First-stage vectors, of shape `(num_documents, context_embedding_size)`."""
        return self.model(
            context_input_ids=documents.input_ids, context_attention_mask=documents.attention_mask
        ).context_embeddings

    def count_tokens(self, documents: Texts) -> Tensor | None:
        """Token frequencies of context documents, if the model needs them."""
        if self.config is None or not self.config.counts_tokens:
            return None
        return count_token_frequencies(documents.input_ids, documents.attention_mask, self.config.vocab_size)

    def encode_block(self, embeddings: Tensor, token_frequencies: Tensor | None) -> ContextBlock:
        """The context block of prefix attention."""
        return self.model(dataset_embeddings=embeddings, token_frequencies=token_frequencies).context_block

    def embed_texts(self, texts: Texts, context: StepContext) -> Tensor:
        """Embeddings of shape `(num_texts, embedding_size)`, not normalised."""
        inputs = {"input_ids": texts.input_ids, "attention_mask": texts.attention_mask}
        if not self.has_context:
            return mean_of_tokens(self.model(**inputs).last_hidden_state, texts.attention_mask)
        if context.block is not None:
            return self.model(**inputs, context_block=context.block).embeddings
        if context.embeddings is not None:
            inputs["token_frequencies"] = context.token_frequencies
        return self.model(**inputs, dataset_embeddings=context.embeddings).embeddings


def is_contextual(model: nn.Module) -> bool:
    """Whether a bare model reads a context. Its class may come from a checkpoint's own copy of the code."""
    return isinstance(model, CDEModel) or type(model).__name__ == CDEModel.__name__


def disable_dropout(model: nn.Module) -> None:
    """Takes the dropout out of the backbones of a model; contexts and adapters drop what they dropped before."""
    for module_name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and "lora_" not in module_name:
            module.p = 0.0
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def longest_text_of(model: PreTrainedModel) -> int:
    """Number of tokens that a bare model can read of a text."""
    return longest_text(model.second_stage_model.backbone if is_contextual(model) else model)


__all__ = ["Encoder", "StepContext", "disable_dropout", "is_contextual", "longest_text_of"]
