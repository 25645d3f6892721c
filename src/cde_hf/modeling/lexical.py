"""
The lexical part of an embedding: which words a text has, those that are rare in the context counting most.

1. Each token of the vocabulary has a random vector of signs, so that those of two tokens are nearly orthogonal.
2. A token that a share `p` of the context documents contains weighs `(1 - p) * a / (a + p)`: nothing, if it is in all
   of them, as special tokens are. A token that a text has several times counts once.
3. The weighted sum of a text's vectors is a sketch of its words: the cosine of two sketches is, but for a noise that
   shrinks with the root of their width, the cosine of the two bags of words.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def draw_signs(vocab_size: int, lexical_size: int) -> Tensor:
    """Random signs of shape `(vocab_size, lexical_size)`, the same ones wherever and whenever they are drawn."""
    # Of NumPy's generators, this one alone is promised never to change.
    words = np.frombuffer(np.random.RandomState(0).bytes(4 * vocab_size * lexical_size), dtype="<u4")
    return torch.from_numpy((words & 1).astype(np.int8) * 2 - 1).view(vocab_size, lexical_size)


def lexical_sketch(input_ids: Tensor, weights: Tensor, token_frequencies: Tensor, signs: Tensor) -> Tensor:
    """
    Sketches of the words of texts.

    Args:
        input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Token ids.
        weights (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Weight `a / (a + p)` of each token, or zero for a token that does not count.
        token_frequencies (`torch.Tensor` of shape `(vocab_size,)`):
            Share `p` of the context documents that contain each token.
        signs (`torch.Tensor` of shape `(vocab_size, lexical_size)`):
            Vector of each token of the vocabulary.

    Returns:
        `torch.Tensor` of shape `(batch_size, lexical_size)`: Vectors of length 1, or 0 where all weights are zero.

    Example:

    ```python
    >>> signs, weights, frequencies = draw_signs(10, 64), torch.ones(1, 3), torch.zeros(10)
    >>> texts = torch.tensor([[4, 5, 6]]), torch.tensor([[6, 5, 4]])
    >>> one, other = (lexical_sketch(text, weights, frequencies, signs) for text in texts)
    >>> torch.allclose(one, other)
    True

    ```
    """
    # Equal tokens side by side, and those that do not count in front: the first of each kind counts.
    sorted_ids, order = torch.where(weights > 0, input_ids, -1).sort(dim=1)
    is_first = F.pad(sorted_ids[:, 1:] != sorted_ids[:, :-1], (1, 0), value=True)
    input_ids = input_ids.gather(1, order)
    weights = weights.gather(1, order) * is_first * (1 - token_frequencies)[input_ids]
    vectors = signs[input_ids].to(weights.dtype)  # (batch_size, sequence_length, lexical_size)
    return F.normalize(torch.einsum("bs,bsd->bd", weights, vectors), dim=-1)


def add_lexical_part(dense: Tensor, sketch: Tensor, lexical_weight: float) -> Tensor:
    """
    Puts sketches behind dense vectors, so that the cosines of both count in one inner product.

    Args:
        dense (`torch.Tensor` of shape `(batch_size, dim)`):
            Embeddings, of any length.
        sketch (`torch.Tensor` of shape `(batch_size, lexical_size)`):
            What [`lexical_sketch`] gave.
        lexical_weight (`float`):
            What the cosine of the sketches counts beside that of the embeddings, which counts 1.

    Returns:
        `torch.Tensor` of shape `(batch_size, dim + lexical_size)`: The embeddings, not of length 1.
    """
    return torch.cat([F.normalize(dense, dim=-1), (lexical_weight**0.5 * sketch).to(dense.dtype)], dim=-1)


__all__ = ["add_lexical_part", "draw_signs", "lexical_sketch"]
