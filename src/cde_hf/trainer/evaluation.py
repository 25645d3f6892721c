"""Scores retrieval sets while training: each with its own context, with another set's and with none."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import Prompts, RetrievalSet
from ..modeling import sample_documents
from ..modeling.pooling import mean_of_tokens
from ..modeling.sentence_transformers_cde import CDETransformer
from ..retrieval import ContextualModelEmbedder, SentenceTransformerEmbedder, evaluate
from .step import is_contextual


METRIC = "ndcg@10"

_CONTEXT_NAMES = {"no": "none"}  # from the name in a table to the name in a metric


class _MeanPooledEncoder(nn.Module):
    """A plain encoder under training as a module of sentence-transformers."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_seq_length: int):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs) -> dict[str, Tensor]:
        texts = [(prompt or "") + text for text in inputs]
        options = {"padding": True, "truncation": True, "max_length": self.max_seq_length, "return_tensors": "pt"}
        features = self.tokenizer(texts, **options)
        return {name: features[name] for name in ("input_ids", "attention_mask")}

    def forward(self, features: dict[str, Any], **kwargs) -> dict[str, Any]:
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
) -> dict[str, float]:
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
        `dict[str, float]`: `SET_ndcg@10` for a plain encoder. For a contextual model `SET_ndcg@10_own`,
        `SET_ndcg@10_foreign` (if there is another set) and `SET_ndcg@10_none`.
    """
    scores = {}
    indices = range(process_index, len(retrieval_sets), num_processes)
    for index in tqdm(indices, desc="Evaluate", unit="set", leave=False, disable=process_index > 0):
        retrieval_set = retrieval_sets[index]
        other_set = retrieval_sets[(index + 1) % len(retrieval_sets)]
        others = {}
        if other_set is not retrieval_set:
            documents = [text for text in other_set.corpus.values() if text.strip()]
            others["foreign"] = sample_documents(documents, context_size, seed=seed)
        evaluation = evaluate(
            [embedder],
            [retrieval_set],
            contexts=("own", "none"),
            other_contexts=others,
            context_size=context_size,
            seed=seed,
        )
        for row, metrics in evaluation.scores[retrieval_set.name].items():
            context = row.removeprefix(embedder.name).removeprefix(", ").removesuffix(" context")
            name = f"{retrieval_set.name}_{METRIC}" + (f"_{_CONTEXT_NAMES.get(context, context)}" if context else "")
            scores[name] = fmean(metrics[METRIC].values())
    return scores


def add_means(scores: dict[str, float]) -> dict[str, float]:
    """Adds the means over the sets, one for each context: `ndcg@10_own` and so on."""
    groups: dict[str, list[float]] = {}
    for name, score in scores.items():
        groups.setdefault(name[name.rindex(METRIC) :], []).append(score)
    return {name: fmean(group) for name, group in groups.items()} | scores


__all__ = ["METRIC", "add_means", "make_embedder", "score_retrieval_sets"]
