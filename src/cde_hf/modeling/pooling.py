"""
How text tokens become one vector: the weight of each token, their weighted mean, and the lexical part.

The lexical part of an embedding is a sketch of the text's words that up-weights words that are rare in the context:

1. Each token of the vocabulary has a fixed vector of random signs. The vectors of two tokens are nearly orthogonal.
2. A token that occurs in a share `p` of the context documents has weight `(1 - p) * a / (a + p)`. Special tokens occur
   in all of them and have weight 0. Each distinct token of a text counts once.
3. The sketch is the weighted sum of the vectors of a text's tokens. The cosine of two sketches approximates the cosine
   of the two bags of words; the error shrinks with the square root of the sketch's size.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


DEFAULT_FREQUENCY_SCALE = 0.2


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


def draw_signs(vocab_size: int, lexical_size: int) -> Tensor:
    """Random signs of shape `(vocab_size, lexical_size)`, the same on every machine and in every version."""
    # NumPy guarantees a fixed stream for this generator only.
    words = np.frombuffer(np.random.RandomState(0).bytes(4 * vocab_size * lexical_size), dtype="<u4")
    return torch.from_numpy((words & 1).astype(np.int8) * 2 - 1).view(vocab_size, lexical_size)


def lexical_sketch(input_ids: Tensor, weights: Tensor, token_frequencies: Tensor, signs: Tensor) -> Tensor:
    """
    Sketches the words of texts.

    Args:
        input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Token ids.
        weights (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Weight `a / (a + p)` of each token, or zero to ignore it.
        token_frequencies (`torch.Tensor` of shape `(vocab_size,)`):
            Share `p` of the context documents that contain each token.
        signs (`torch.Tensor` of shape `(vocab_size, lexical_size)`):
            Sign vector of each token of the vocabulary.

    Returns:
        `torch.Tensor` of shape `(batch_size, lexical_size)`: Unit-norm vectors, or zero where all weights are zero.

    Example:

    ```python
    >>> signs, weights, frequencies = draw_signs(10, 64), torch.ones(1, 3), torch.zeros(10)
    >>> texts = torch.tensor([[4, 5, 6]]), torch.tensor([[6, 5, 4]])
    >>> one, other = (lexical_sketch(text, weights, frequencies, signs) for text in texts)
    >>> torch.allclose(one, other)
    True

    ```
    """
    # Sorting puts equal tokens side by side and ignored tokens first. Only the first of equal tokens counts.
    sorted_ids, order = torch.where(weights > 0, input_ids, -1).sort(dim=1)
    is_first = F.pad(sorted_ids[:, 1:] != sorted_ids[:, :-1], (1, 0), value=True)
    input_ids = input_ids.gather(1, order)
    weights = weights.gather(1, order) * is_first * (1 - token_frequencies)[input_ids]
    vectors = signs[input_ids].to(weights.dtype)  # (batch_size, sequence_length, lexical_size)
    return F.normalize(torch.einsum("bs,bsd->bd", weights, vectors), dim=-1)


def add_lexical_part(dense: Tensor, sketch: Tensor, lexical_weight: float) -> Tensor:
    """
    Appends sketches to dense vectors, so that one inner product is the weighted sum of both cosines.

    Args:
        dense (`torch.Tensor` of shape `(batch_size, dim)`):
            Embeddings of any norm.
        sketch (`torch.Tensor` of shape `(batch_size, lexical_size)`):
            Output of [`lexical_sketch`].
        lexical_weight (`float`):
            Weight of the sketches' cosine. The embeddings' cosine has weight 1.

    Returns:
        `torch.Tensor` of shape `(batch_size, dim + lexical_size)`: The embeddings, not normalised.
    """
    return torch.cat([F.normalize(dense, dim=-1), (lexical_weight**0.5 * sketch).to(dense.dtype)], dim=-1)


__all__ = [
    "DEFAULT_FREQUENCY_SCALE",
    "add_lexical_part",
    "draw_signs",
    "lexical_sketch",
    "mean_of_tokens",
    "pooling_weights",
]
