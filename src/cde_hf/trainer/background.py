"""The token frequencies of the training data, which those of a context are judged by."""

import numpy as np
import torch

from ..modeling import CDEModel
from ..modeling.corpus_context import count_token_frequencies
from .collator import ContrastiveCollator


_NUM_DOCUMENTS = 4096
_DOCUMENTS_AT_ONCE = 64


def set_background_frequencies(model: CDEModel, collator: ContrastiveCollator, seed: int) -> None:
    """
    Counts the tokens of a sample of the training documents, if the model pools by relative frequency and has no
    background yet. Every process, and a run that is resumed, counts the same sample.

    Args:
        model (`CDEModel`):
            The bare model.
        collator (`ContrastiveCollator`):
            Knows the documents and how to tokenise them.
        seed (`int`):
            Seed of the sample.
    """
    if model.config.pooling != "relative_frequency" or model.second_stage_model.background_frequencies.any():
        return
    num_rows = len(collator.dataset)
    rows = np.random.default_rng(seed).permutation(num_rows)[:_NUM_DOCUMENTS]
    total = torch.zeros(model.config.vocab_size)
    for start in range(0, len(rows), _DOCUMENTS_AT_ONCE):
        part = rows[start : start + _DOCUMENTS_AT_ONCE]
        total += len(part) * count_token_frequencies(*collator.tokenize_documents(part), model.config.vocab_size)
    model.second_stage_model.background_frequencies.copy_(total / len(rows))


__all__ = ["set_background_frequencies"]
