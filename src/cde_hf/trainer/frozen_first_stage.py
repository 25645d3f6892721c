"""First-stage vectors of all documents, for a first stage that is not trained."""

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm

from ..modeling import CDEModel
from .collator import ContrastiveCollator


@torch.no_grad()
def embed_all_documents(
    model: CDEModel, collator: ContrastiveCollator, accelerator: Accelerator, mini_batch_size: int
) -> Tensor:
    """
    Embeds every document of the data set once, each process its share.

    The mini-batches depend on nothing but their size, so that a run that is resumed has the same vectors.

    Args:
        model (`CDEModel`):
            The bare model.
        collator (`ContrastiveCollator`):
            Knows the documents and how to tokenise them.
        accelerator (`Accelerator`):
            Knows the processes.
        mini_batch_size (`int`):
            Number of documents to embed at once.

    Returns:
        `torch.Tensor` of shape `(num_pairs, hidden_size)`: The vectors, on the CPU.
    """
    was_training = model.training
    model.eval()
    num_rows = len(collator.dataset)
    starts = range(0, num_rows, mini_batch_size)
    vectors = torch.zeros(num_rows, model.config.hidden_size)
    own_starts = starts[accelerator.process_index :: accelerator.num_processes]
    for start in tqdm(own_starts, desc="Embed context documents", disable=not accelerator.is_local_main_process):
        rows = range(start, min(start + mini_batch_size, num_rows))
        input_ids, attention_mask = collator.tokenize_documents(rows)
        part = model.encode_context_documents(input_ids.to(model.device), attention_mask.to(model.device))
        vectors[rows.start : rows.stop] = part.float().cpu()
    model.train(was_training)
    if accelerator.num_processes == 1:
        return vectors
    return accelerator.reduce(vectors.to(accelerator.device)).cpu()  # each row is zero on all processes but one


__all__ = ["embed_all_documents"]
