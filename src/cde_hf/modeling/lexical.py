"""
The lexical part of an embedding: which words a text has, those that are rare in the context counting most.

1. Each token of the vocabulary has a random vector of signs, so that those of two tokens are nearly orthogonal.
2. A token that a share `p` of the context documents contains weighs `(1 - p) * a / (a + p)`: nothing, if it is in all
   of them, as special tokens are. A token that a text has several times counts once.
3. The weighted sum of a text's vectors is a sketch of its words: the cosine of two sketches is, but for a noise that
   shrinks with the root of their width, the cosine of the two bags of words.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def draw_signs(vocab_size: int, lexical_size: int) -> Tensor:
    """Random signs of shape `(vocab_size, lexical_size)`, the same ones for every model of these sizes."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (vocab_size, lexical_size), generator=generator, dtype=torch.int8) * 2 - 1


def lexical_sketch(input_ids: Tensor, weights: Tensor, signs: Tensor) -> Tensor:
    """
    Sketches of the words of texts.

    Args:
        input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Token ids.
        weights (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Weight of each token, the same for equal tokens of a text unless it is zero.
        signs (`torch.Tensor` of shape `(vocab_size, lexical_size)`):
            Vector of each token of the vocabulary.

    Returns:
        `torch.Tensor` of shape `(batch_size, lexical_size)`: Vectors of length 1, or 0 where all weights are zero.

    Example:

    ```python
    >>> signs = draw_signs(10, 64)
    >>> ones = torch.ones(1, 3)
    >>> once, twice = (lexical_sketch(torch.tensor([ids]), ones, signs) for ids in ([4, 5, 6], [6, 5, 4]))
    >>> torch.allclose(once, twice)
    True

    ```
    """
    is_equal = input_ids.unsqueeze(2) == input_ids.unsqueeze(1)  # (batch_size, sequence_length, sequence_length)
    num_equal = (is_equal & (weights > 0).unsqueeze(1)).sum(dim=2).clamp(min=1)
    vectors = signs[input_ids].to(weights.dtype)  # (batch_size, sequence_length, lexical_size)
    return F.normalize(torch.einsum("bs,bsd->bd", weights / num_equal, vectors), dim=-1)


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
