"""How text tokens become one vector: their counts in a corpus, the weight of each token, and the weighted mean."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase


DEFAULT_FREQUENCY_SCALE = 0.2


def num_token_ids(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest token id. The ids of some vocabularies have gaps, so it may exceed their size."""
    return max(tokenizer.get_vocab().values()) + 1


def count_token_frequencies(input_ids: Tensor, attention_mask: Tensor, vocab_size: int) -> Tensor:
    """
    Share of the documents that contain each token.

    Args:
        input_ids (`torch.Tensor` of shape `(num_documents, sequence_length)`):
            Token ids of the context documents.
        attention_mask (`torch.Tensor` of shape `(num_documents, sequence_length)`):
            Zero at padding, which is ignored.
        vocab_size (`int`):
            Size of the vocabulary.

    Returns:
        `torch.Tensor` of shape `(vocab_size,)`: The frequencies, between 0 and 1.

    Example:

    ```python
    >>> import torch
    >>> count_token_frequencies(torch.tensor([[1, 2, 2], [1, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]), 4)
    tensor([0.0000, 1.0000, 0.5000, 0.0000])

    ```
    """
    # On an accelerator reading a value would stall it, and the index below is checked there too.
    if input_ids.device.type == "cpu" and not torch.compiler.is_compiling() and input_ids.max() >= vocab_size:
        raise ValueError(
            f"The context has the token id {input_ids.max().item()}, but the vocabulary has {vocab_size} tokens. "
            "Tokenize it with the model's own tokenizer."
        )
    # Padding gets an id of its own. Sorting puts equal tokens side by side, and the first of them counts.
    tokens = torch.where(attention_mask.bool(), input_ids, vocab_size).sort(dim=1).values
    is_first = nn.functional.pad(tokens[:, 1:] != tokens[:, :-1], (1, 0), value=True)
    counts = torch.zeros(vocab_size + 1, device=input_ids.device)
    counts.index_add_(0, tokens.flatten(), is_first.flatten().float())
    return counts[:vocab_size] / len(input_ids)


def pooling_weights(
    input_ids: Tensor,
    attention_mask: Tensor,
    *,
    instruction_end_id: int | None = None,
    token_frequencies: Tensor | None = None,
    frequency_scale: float = DEFAULT_FREQUENCY_SCALE,
) -> Tensor:
    """
    Weights of the text tokens in the mean.

    Args:
        input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Token ids.
        attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Zero at padding, which has weight 0.
        instruction_end_id (`int`, *optional*):
            Id of the token that ends an instruction. The tokens up to its first occurrence have weight 0. The very
            first token of a text never counts as such an end. A text without an instruction keeps all tokens.
        token_frequencies (`torch.Tensor` of shape `(vocab_size,)`, *optional*):
            Share `p` of the context documents that contain each token. A token has weight `a / (a + p)`.
        frequency_scale (`float`, *optional*, defaults to `0.2`):
            The scale `a`. An infinite scale gives equal weights.

    Returns:
        `torch.Tensor` of shape `(batch_size, sequence_length)`: The weights, between 0 and 1.
    """
    weights = attention_mask.float()
    if instruction_end_id is not None:
        weights = weights * _is_after_instruction(input_ids, instruction_end_id)
    if token_frequencies is not None:
        weight_of_token = 1 / (1 + token_frequencies / frequency_scale)  # a / (a + p), finite for an infinite a
        weights = weights * weight_of_token[input_ids]
    return weights


def mean_of_tokens(hidden_states: Tensor, weights: Tensor) -> Tensor:
    """
    Weighted mean over the tokens.

    Args:
        hidden_states (`torch.Tensor` of shape `(batch_size, sequence_length, dim)`):
            One vector per token.
        weights (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Weight of each token. They need not sum to one. If all weights of a text are zero, so is its mean.

    Returns:
        `torch.Tensor` of shape `(batch_size, dim)`: The means.
    """
    weights = weights.to(torch.promote_types(hidden_states.dtype, torch.float32))  # a bfloat16 sum stops at 256 tokens
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.bmm(weights.to(hidden_states.dtype).unsqueeze(1), hidden_states).squeeze(1)


def _is_after_instruction(input_ids: Tensor, instruction_end_id: int) -> Tensor:
    is_end = input_ids == instruction_end_id
    is_end[:, 0] = False
    has_end = is_end.any(dim=1, keepdim=True)
    num_ends_before = is_end.cumsum(dim=1) - is_end.int()  # (batch_size, sequence_length)
    return (num_ends_before > 0) | ~has_end


__all__ = [
    "DEFAULT_FREQUENCY_SCALE",
    "count_token_frequencies",
    "mean_of_tokens",
    "num_token_ids",
    "pooling_weights",
]
