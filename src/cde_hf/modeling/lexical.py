"""
The lexical part of an embedding: a sketch of the text's words that up-weights words that are rare in the context.

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


__all__ = ["add_lexical_part", "draw_signs", "lexical_sketch"]
