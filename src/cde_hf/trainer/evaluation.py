"""Scores retrieval sets while training: each with its own context, with another set's and with none."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import Prompts, RetrievalSet
from ..evaluation import ContextualModelEmbedder, SentenceTransformerEmbedder
from ..evaluation.scoring import sample_context, score_set
from ..modeling.pooling import mean_of_tokens
from ..modeling.sentence_transformers_cde import CDETransformer
from .step import is_contextual


METRIC = "ndcg@10"
Scores = dict[tuple[str, str | None], float]  # by set and context


class _MeanPooledEncoder(nn.Module):
    """A plain encoder under training as a module of sentence-transformers."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_seq_length: int):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        texts = [(prompt or "") + text for text in inputs]
        features = self.tokenizer(
            texts,
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=self.max_seq_length,
            return_tensors="pt",
        )
        return {name: features[name] for name in ("input_ids", "attention_mask")}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        hidden_states = self.model(**features).last_hidden_state
        features["sentence_embedding"] = mean_of_tokens(hidden_states, features["attention_mask"])
        return features


def make_embedder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompts: Prompts,
    max_length: int,
    batch_size: int,
) -> SentenceTransformerEmbedder:
    """
    Wraps a model under training in sentence-transformers, as a user will load its checkpoint.

    Args:
        model (`PreTrainedModel`):
            The bare model.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        prompts (`Prompts`):
            Texts to put before queries and documents.
        max_length (`int`):
            Texts are truncated to this number of tokens.
        batch_size (`int`):
            Number of texts to embed at once.

    Returns:
        `SentenceTransformerEmbedder`: A [`ContextualModelEmbedder`] if the model reads a context.
    """
    module: nn.Module
    if is_contextual(model):
        module = CDETransformer(model, tokenizer, max_seq_length=max_length, document_prompt=prompts.document)
    else:
        module = _MeanPooledEncoder(model, tokenizer, max_length)
    wrapped = SentenceTransformer(
        modules=[module],
        prompts=prompts.for_sentence_transformers(),
        similarity_fn_name="cosine",
        device=str(model.device),
    )
    embedder_class = ContextualModelEmbedder if is_contextual(model) else SentenceTransformerEmbedder
    return embedder_class(wrapped, "model", batch_size=batch_size)


def score_retrieval_sets(
    embedder: SentenceTransformerEmbedder,
    retrieval_sets: Sequence[RetrievalSet],
    *,
    context_size: int,
    seed: int,
    process_index: int = 0,
    num_processes: int = 1,
) -> Scores:
    """
    Computes NDCG@10 on this process's share of the retrieval sets.

    Args:
        embedder (`SentenceTransformerEmbedder`):
            The model.
        retrieval_sets (`Sequence[RetrievalSet]`):
            All sets.
        context_size (`int`):
            Number of context documents to sample.
        seed (`int`):
            Seed of the sample.
        process_index (`int`, *optional*, defaults to `0`):
            Index of this process. It scores the sets `process_index`, `process_index + num_processes` and so on.
        num_processes (`int`, *optional*, defaults to `1`):
            Number of processes.

    Returns:
        `dict[tuple[str, str | None], float]`: Score of each set. A contextual model has one in each of the contexts
        `"own"`, `"foreign"` (if there is another set) and `"none"`. The context of a plain encoder is `None`.
    """
    scores: Scores = {}
    indices = range(process_index, len(retrieval_sets), num_processes)
    for index in tqdm(indices, desc="Evaluate", unit="set", leave=False, disable=process_index > 0):
        retrieval_set = retrieval_sets[index]
        other_set = retrieval_sets[(index + 1) % len(retrieval_sets)]
        contexts: dict[str, list[str] | None] = {"own": sample_context(retrieval_set, context_size, seed)}
        if other_set is not retrieval_set:
            contexts["foreign"] = sample_context(other_set, context_size, seed)
        contexts["none"] = None
        for row, row_scores in score_set(embedder, retrieval_set, contexts):
            scores[retrieval_set.name, row.context] = fmean(row_scores[METRIC].values())
    return scores


def add_means(scores: Scores) -> dict[str, float]:
    """
    Names the scores, after the means over the sets.

    Args:
        scores (`dict[tuple[str, str | None], float]`):
            Scores of all processes.

    Returns:
        `dict[str, float]`: `ndcg@10` and `SET_ndcg@10` for a plain encoder; `ndcg@10_CONTEXT` and
        `SET_ndcg@10_CONTEXT` for a contextual model.
    """
    suffixes = {context: METRIC if context is None else f"{METRIC}_{context}" for _, context in scores}
    means = {
        suffix: fmean(score for (_, other), score in scores.items() if other == context)
        for context, suffix in suffixes.items()
    }
    return means | {f"{name}_{suffixes[context]}": score for (name, context), score in scores.items()}


__all__ = ["METRIC", "add_means", "make_embedder", "score_retrieval_sets"]
