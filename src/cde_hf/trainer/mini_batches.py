"""Mini-batches of texts: what fits in memory at once, of similar length so that little of it is padding."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Texts:
    """
    Token ids and attention mask of texts, padded on the right, both of shape `(num_texts, sequence_length)`.
    """

    input_ids: Tensor
    attention_mask: Tensor

    def __len__(self) -> int:
        return len(self.input_ids)

    def select(self, rows: Tensor) -> "Texts":
        """Some of the texts, without the columns that are padding to all of them."""
        length = max(1, int(self.attention_mask[rows].sum(dim=1).max()))
        return Texts(self.input_ids[rows, :length], self.attention_mask[rows, :length])


@dataclass(frozen=True)
class MiniBatchSize:
    """
    How many texts go through a model at once.

    Args:
        num_texts (`int`, *optional*):
            At most so many texts. Defaults to no limit.
        num_tokens (`int`, *optional*):
            At most so many tokens, padding included; a longer text goes alone. Defaults to no limit.
    """

    num_texts: int | None = None
    num_tokens: int | None = None

    def split(self, texts: Texts) -> Iterator[Tensor]:
        """Rows of each mini-batch, from the longest texts to the shortest. The largest one comes first."""
        lengths = texts.attention_mask.sum(dim=1).cpu()
        order = torch.argsort(lengths, descending=True, stable=True)
        start = 0
        while start < len(order):
            size = len(order) - start
            if self.num_texts is not None:
                size = min(size, self.num_texts)
            if self.num_tokens is not None:
                size = min(size, max(1, self.num_tokens // max(1, int(lengths[order[start]]))))
            yield order[start : start + size].to(texts.input_ids.device)
            start += size


__all__ = ["MiniBatchSize", "Texts"]
