"""Retrieval sets while training: each with its own context, with another set's and with none."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import Prompts, RetrievalSet
from ..modeling import CorpusContext, sample_documents
from ..retrieval import evaluate
from .step import Encoder, MiniBatchSize, Texts, is_contextual


METRIC = "ndcg@10"

_CONTEXT_NAMES = {"no": "none"}  # how a table calls a context, and how a metric does


class ModelEmbedder:
    """
    An `Embedder` around a model under training, without a context.

    Args:
        model (`PreTrainedModel`):
            The bare model.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        prompts (`Prompts`):
            Texts to put before queries and documents.
        max_length (`int`):
            Number of tokens to read of a text.
        batch_size (`int`):
            Number of texts to embed at once.
    """

    name = "model"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompts: Prompts,
        max_length: int,
        batch_size: int,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.max_length = max_length
        self.batch_size = batch_size
        self.context = CorpusContext.null()

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of length 1, of shape `(num_texts, dim)`."""
        return self._embed([self.prompts.query + text for text in texts])

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of length 1, of shape `(num_texts, dim)`."""
        return self._embed([self.prompts.document + text for text in texts])

    @torch.no_grad()
    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        tokens = self.tokenize(texts)
        encoder = Encoder(self.model, self.model)
        config = self.model.config
        width = config.embedding_size if encoder.has_context else config.hidden_size
        vectors = np.empty((len(texts), width), dtype=np.float32)
        for rows in MiniBatchSize(self.batch_size).split(tokens):
            part = tokens.select(rows)
            part = Texts(part.input_ids.to(self.model.device), part.attention_mask.to(self.model.device))
            if is_contextual(self.model):
                embeddings = self.model.encode_texts(part.input_ids, part.attention_mask, context=self.context)
            else:
                embeddings = encoder.embed_texts(part, self.context)
            vectors[rows] = F.normalize(embeddings.float(), dim=-1).cpu().numpy()
        return vectors

    def tokenize(self, texts: Sequence[str]) -> Texts:
        """Token ids and mask, on the CPU."""
        tokens = self.tokenizer(
            list(texts),
            truncation=True,
            max_length=self.max_length,
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        return Texts(tokens["input_ids"], tokens["attention_mask"])


class ContextualModelEmbedder(ModelEmbedder):
    """A [`ModelEmbedder`] around a contextual model."""

    def set_context(self, documents: Sequence[str] | None) -> None:
        """Shows the model documents, or takes the context away."""
        if documents is None:
            self.context = CorpusContext.null()
            return
        tokens = self.tokenize([self.prompts.document + text for text in documents])
        device = self.model.device
        self.context = self.model.encode_context(
            tokens.input_ids.to(device), tokens.attention_mask.to(device), mini_batch_size=self.batch_size
        )


def score_retrieval_sets(
    embedder: ModelEmbedder,
    retrieval_sets: Sequence[RetrievalSet],
    *,
    context_size: int,
    seed: int,
    process_index: int = 0,
    num_processes: int = 1,
) -> dict[str, float]:
    """
    NDCG@10 of this process's share of the retrieval sets.

    Args:
        embedder (`ModelEmbedder`):
            The model.
        retrieval_sets (`Sequence[RetrievalSet]`):
            All sets.
        context_size (`int`):
            Number of context documents to draw.
        seed (`int`):
            Seed of the draw.
        process_index (`int`, *optional*, defaults to `0`):
            This process, which scores every `num_processes`-th set from this one on.
        num_processes (`int`, *optional*, defaults to `1`):
            Number of processes.

    Returns:
        `dict[str, float]`: `SET_ndcg@10` of a plain encoder; of a contextual model `SET_ndcg@10_own`, `_foreign` (if
        there is another set) and `_none`.
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
    """The scores and, for each context, their mean over the sets: `ndcg@10_own` and so on."""
    groups: dict[str, list[float]] = {}
    for name, score in scores.items():
        groups.setdefault(name[name.rindex(METRIC) :], []).append(score)
    return {name: fmean(group) for name, group in groups.items()} | scores


__all__ = ["METRIC", "ContextualModelEmbedder", "ModelEmbedder", "add_means", "score_retrieval_sets"]
