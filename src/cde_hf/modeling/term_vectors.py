"""
Term vectors: what the words of a corpus mean there, in closed form (latent semantic analysis).

1. Count the tokens of every document and weight them by BM25. This gives a matrix of documents by tokens.
2. Its truncated singular value decomposition gives every token a vector, the most important directions first. Tokens
   that occur together in this corpus get similar vectors.
3. A text is the sum of its tokens' vectors, weighted by BM25 and normalised.

Terms are the tokens of the model's own tokenizer, so every language and every server that has token ids can use them.
"""

import copy
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from sklearn.utils.extmath import randomized_svd
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .context import CorpusTerms
from .pooling import num_token_ids


logger = logging.get_logger(__name__)

MAX_TERMS = 2**15  # with 255 directions 17 MB on disk

_SATURATION = 1.2  # BM25's k1
MAX_WEIGHT = _SATURATION + 1  # of a term that fills its document, without its inverse document frequency
_LENGTH_NORMALIZATION = 0.75  # BM25's b
_DOCUMENTS_AT_ONCE = 512


def fit_terms(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[str], *, num_directions: int, seed: int = 0
) -> CorpusTerms | None:
    """
    Fits term vectors to a corpus.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The tokenizer of the model.
        documents (`Sequence[str]`):
            Documents of the corpus.
        num_directions (`int`):
            Maximum number of directions. A corpus of few documents or tokens gives fewer.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the decomposition.

    Returns:
        `CorpusTerms` or `None`: The terms, with weight 0 until it is calibrated. `None` if the corpus is too small.
    """
    counts = count_documents(tokenizer, documents)  # (num_documents, vocab_size)
    document_frequencies = counts.getnnz(axis=0)
    most_frequent = np.argsort(-document_frequencies, kind="stable")[:MAX_TERMS]
    term_ids = np.sort(most_frequent[document_frequencies[most_frequent] > 0])
    num_directions = min(num_directions, len(documents) - 1, len(term_ids) - 1)
    if num_directions < 1:
        logger.warning(
            f"The corpus part needs documents with different words, got {len(documents)} documents with "
            f"{len(term_ids)} different tokens. The embeddings have no corpus part."
        )
        return None
    idf = inverse_document_frequencies(document_frequencies[term_ids], len(documents))
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    mean_length = float(lengths.mean())
    matrix = counts[:, term_ids].tocsr()
    matrix.data = saturate(matrix.data, np.repeat(lengths, np.diff(matrix.indptr)), mean_length)
    matrix.data *= idf[matrix.indices]
    _, singular_values, directions = randomized_svd(matrix, num_directions, n_iter=4, random_state=seed)
    directions = directions[singular_values > 1e-4 * singular_values[0]]
    # Their common scale does not matter. This one keeps small numbers exact in float16.
    vectors = torch.from_numpy(directions.T * math.sqrt(len(term_ids))).half().float()
    return CorpusTerms(torch.from_numpy(term_ids), torch.from_numpy(idf), vectors.contiguous(), mean_length)


def embed_terms(terms: CorpusTerms, term_ids: Tensor, term_counts: Tensor) -> Tensor:
    """
    Embeds texts by their terms' vectors.

    Args:
        terms (`CorpusTerms`):
            The terms of a corpus.
        term_ids (`torch.Tensor` of shape `(batch_size, num_terms)`):
            Tokens of each text.
        term_counts (`torch.Tensor` of shape `(batch_size, num_terms)`):
            How often the text contains them, 0 for padding. A token that is listed twice counts once where its other
            count is 0.

    Returns:
        `torch.Tensor` of shape `(batch_size, num_directions)`: Unit-norm vectors, or zero for a text without any term
        of the corpus.
    """
    rows, weights = _weigh(terms, term_ids, term_counts)
    if torch.compiler.is_exporting():  # ONNX makes a loop over the texts of an `embedding_bag`
        sums = (weights.unsqueeze(1) @ terms.vectors[rows]).squeeze(1)
    else:
        sums = F.embedding_bag(rows, terms.vectors, mode="sum", per_sample_weights=weights)
    return F.normalize(sums, dim=-1)


def parts_of_terms(terms: CorpusTerms, term_ids: Tensor, term_counts: Tensor) -> Tensor:
    """The summands of [`embed_terms`], of shape `(batch_size, num_terms, num_directions)`."""
    rows, weights = _weigh(terms, term_ids, term_counts)
    parts = terms.vectors[rows] * weights.unsqueeze(-1)
    return parts / parts.sum(dim=1, keepdim=True).norm(dim=-1, keepdim=True).clamp(min=1e-12)


def share_of_unknown_terms(
    tokenizer: PreTrainedTokenizerBase, terms: CorpusTerms, texts: Sequence[str], *, num_documents: int
) -> float:
    """
    Share of the texts' BM25 weight that belongs to tokens outside of the terms.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The tokenizer of the model.
        terms (`CorpusTerms`):
            The terms of a corpus.
        texts (`Sequence[str]`):
            Texts without prompts.
        num_documents (`int`):
            Number of documents that the terms were fitted on.

    Returns:
        `float`: The share, between 0 and 1.
    """
    features = term_features(tokenizer, texts, prompt=None, task=None)
    term_ids, term_counts = features["term_ids"], features["term_counts"]
    _, weights = _weigh(terms, term_ids, term_counts)
    idf_of_unknown = math.log(1 + (num_documents + 0.5) / 0.5)
    lengths = term_counts.sum(dim=1, keepdim=True)
    unknown = saturate(term_counts, lengths, terms.mean_length) * ~torch.isin(term_ids, terms.ids) * idf_of_unknown
    return float(unknown.sum() / (unknown.sum() + weights.sum()).clamp(min=1e-9))


def count_terms(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
    """
    Counts the tokens of texts, which are read to their end. Special tokens are skipped.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The tokenizer, which stays unchanged.
        texts (`Sequence[str]`):
            Texts without prompts.

    Returns:
        `list[tuple[torch.Tensor, torch.Tensor]]`: The distinct tokens of each text, in ascending order, and how often
        it contains them.
    """
    counted, special_ids = [], tokenizer.all_special_ids
    for token_ids in _read_whole(tokenizer, texts):
        distinct, counts = np.unique(np.asarray(token_ids, dtype=np.int64), return_counts=True)
        is_term = ~np.isin(distinct, special_ids)
        counted.append((torch.from_numpy(distinct[is_term]), torch.from_numpy(counts[is_term]).float()))
    return counted


def _read_whole(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts, without truncation and without the special tokens around them."""
    if tokenizer not in _untruncated_tokenizers:
        # A copy: a tokenizer that truncates at one call and not at the next cannot be shared by threads.
        _untruncated_tokenizers[tokenizer] = copy.deepcopy(tokenizer)
    encoded = _untruncated_tokenizers[tokenizer](
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    )
    return encoded["input_ids"]


_numbers_of_ids: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int, int]] = WeakKeyDictionary()
_untruncated_tokenizers: WeakKeyDictionary[PreTrainedTokenizerBase, PreTrainedTokenizerBase] = WeakKeyDictionary()


def term_features(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, prompt: str | None, task: str | None
) -> dict[str, Any]:
    """
    What a `CorpusPart` reads of texts, for an input module to add to its features.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The tokenizer.
        texts (`Sequence[str]`):
            Texts without prompts.
        prompt (`str`, *optional*):
            Their prompt.
        task (`str`, *optional*):
            `"query"` or `"document"`, from `encode_query` and `encode_document`.

    Returns:
        `dict`: `term_ids` and `term_counts` of shape `(num_texts, num_distinct_tokens + 1)`, where a count of 0 is
        padding, `term_prompt` and `term_task`.
    """
    ids, counts = zip(*count_terms(tokenizer, texts), strict=True)
    # One more column, as a sum over none is refused: all texts may be empty.
    return {
        "term_ids": F.pad(pad_sequence(list(ids), batch_first=True), (0, 1)),
        "term_counts": F.pad(pad_sequence(list(counts), batch_first=True), (0, 1)),
        "term_prompt": prompt,
        "term_task": task,
    }


def count_input_ids(input_ids: Tensor, is_term: Tensor) -> tuple[Tensor, Tensor]:
    """
    Counts tokens by tensor operations alone. The first of equal tokens has their number, the others have 0.

    Args:
        input_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Token ids.
        is_term (`torch.Tensor` of shape `(batch_size, sequence_length)`):
            Which of them count.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Terms and their counts, as [`embed_terms`] reads them.
    """
    is_equal = (input_ids.unsqueeze(2) == input_ids.unsqueeze(1)) & is_term.unsqueeze(2) & is_term.unsqueeze(1)
    is_first = is_term & (is_equal.tril(-1).sum(dim=2) == 0)
    return input_ids, (is_equal.sum(dim=2) * is_first).float()


def _weigh(terms: CorpusTerms, term_ids: Tensor, term_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the terms, and their BM25 weights in the texts, both of shape `(batch_size, num_terms)`."""
    # A table: ONNX has no binary search.
    rows = terms.row_of_token[term_ids.clamp(max=len(terms.row_of_token) - 1)]
    is_known, rows = rows >= 0, rows.clamp(min=0)
    lengths = term_counts.sum(dim=1, keepdim=True)
    return rows, saturate(term_counts, lengths, terms.mean_length) * terms.idf[rows] * is_known


def inverse_document_frequencies(document_frequencies: np.ndarray, num_documents: int) -> np.ndarray:
    """BM25's weight of each term, from the number of documents that contain it."""
    return np.log(1 + (num_documents - document_frequencies + 0.5) / (document_frequencies + 0.5)).astype(np.float32)


def saturate(counts: Any, lengths: Any, mean_length: float) -> Any:
    """BM25's weight of counts in documents of these lengths, without the weights of the terms. Below `MAX_WEIGHT`."""
    return counts * MAX_WEIGHT / (counts + length_penalty(lengths, mean_length))


def length_penalty(lengths: Any, mean_length: float) -> Any:
    """The count at which a term in a document of this length has half of its largest weight."""
    return _SATURATION * (1 - _LENGTH_NORMALIZATION + _LENGTH_NORMALIZATION / mean_length * lengths)


def count_documents(tokenizer: PreTrainedTokenizerBase, documents: Sequence[str]) -> sparse.csr_matrix:
    """Counts the tokens of documents, as [`count_terms`] does: a matrix of shape `(num_documents, vocab_size)`."""
    blocks = []
    size = len(tokenizer)
    if size not in _numbers_of_ids.setdefault(tokenizer, {}):  # a vocabulary is copied to be read
        _numbers_of_ids[tokenizer] = {size: num_token_ids(tokenizer)}
    num_ids = _numbers_of_ids[tokenizer][size]
    is_short = len(documents) <= 8 * _DOCUMENTS_AT_ONCE
    for start in logging.tqdm(range(0, len(documents), _DOCUMENTS_AT_ONCE), "Counting tokens", disable=is_short):
        token_ids = _read_whole(tokenizer, documents[start : start + _DOCUMENTS_AT_ONCE])
        columns = np.fromiter(chain.from_iterable(token_ids), dtype=np.int64)
        rows = np.repeat(np.arange(len(token_ids)), [len(each) for each in token_ids])
        is_term = ~np.isin(columns, tokenizer.all_special_ids)
        places = rows[is_term], columns[is_term]
        ones = np.ones(len(places[0]), dtype=np.float32)  # equal places are added up
        blocks.append(sparse.csr_matrix((ones, places), shape=(len(token_ids), num_ids)))
    return sparse.vstack(blocks, format="csr")


__all__ = [
    "MAX_WEIGHT",
    "count_documents",
    "count_input_ids",
    "count_terms",
    "embed_terms",
    "fit_terms",
    "inverse_document_frequencies",
    "length_penalty",
    "parts_of_terms",
    "saturate",
    "share_of_unknown_terms",
    "term_features",
]
