"""
Pseudo-queries: a retrieval set made from a corpus alone, to compare models where nobody has judged any documents.

1. Of a document with a title, the title is the query, and the text without the title is searched.
2. Of any other document, one sentence is the query. It is taken out of the document.
3. A document that is too short for that stays in the corpus without a query.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .checks import check_counts, check_seed
from .corpora import Corpus, ids_titles_and_texts
from .retrieval_sets import RetrievalSet


_MIN_WORDS = 5  # of a sentence that is a query, and of the rest of its document

# A sentence ends at a line end, at a mark before a space, or at a mark of a script that writes no space after it or
# uses it for nothing else. Abbreviations differ between languages, so "e.g. this" is split too.
_MARKS_BEFORE_SPACE = ".!?…"
_OTHER_MARKS = "。！？｡．؟۔।॥։።။។"
_SENTENCE = re.compile(
    rf"""\S.*?(?:[{_MARKS_BEFORE_SPACE}]+["'”’»)\]]*(?=\s|$)|[{_OTHER_MARKS}]+["'”’»」』）)\]]*|$)\s*""", re.MULTILINE
)

# A character of Chinese or Japanese counts as a word, because these languages write no spaces.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True, repr=False)
class PseudoRetrievalSet(RetrievalSet):
    """
    A retrieval set with queries made from its corpus. Its scores compare models. Their height means nothing.

    Args:
        num_titles (`int`, *optional*, defaults to `0`):
            Number of queries that are titles. The others are sentences.
    """

    num_titles: int = 0

    @property
    def num_sentences(self) -> int:
        """Number of queries that are sentences."""
        return len(self.queries) - self.num_titles


def pseudo_retrieval_set(
    name: str, corpus: Corpus, *, text_column: str | None = None, num_queries: int = 500, seed: int = 0
) -> PseudoRetrievalSet:
    """
    Makes a retrieval set from a corpus without queries.

    All documents lose their titles, also where a sentence repeats them. A document that gives a sentence loses it. A
    sentence is used only if it occurs once in the corpus. Several documents answer a title if they share it, have it
    as a sentence, or have the same text. Identical documents are kept once.

    Sentences end at line ends and at the sentence-ending marks of several scripts, so no language is needed.

    Args:
        name (`str`):
            Name of the set.
        corpus (`Sequence[str]`, `Mapping[str, str]`, `datasets.Dataset`, `str` or `os.PathLike`):
            As for [`load_corpus`]. Files and datasets can have a `title`.
        text_column (`str`, *optional*):
            As for [`load_corpus`].
        num_queries (`int`, *optional*, defaults to `500`):
            Number of queries to sample. Fewer documents make fewer queries.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sample and of the choice of sentences.

    Returns:
        `PseudoRetrievalSet`: The set. The id of a query is the id of the document that it was made from.

    Example:

    ```python
    >>> texts = ["The cat sleeps on the sofa. It dreams of a very big mouse.", "Dogs bark."]
    >>> pets = pseudo_retrieval_set("pets", texts)
    >>> pets.queries, pets.corpus["0"]
    ({'0': 'It dreams of a very big mouse.'}, 'The cat sleeps on the sofa.')

    ```
    """
    check_counts(num_queries=num_queries)
    check_seed(seed)
    titles, texts = _read_distinct_documents(name, corpus, text_column)
    num_occurrences, answers_of_title = _count_sentences(titles, texts)
    sampled_ids = list(texts)
    generator = random.Random(seed)
    generator.shuffle(sampled_ids)
    queries: dict[str, str] = {}
    answers: dict[str, list[str]] = {}
    for document_id in sampled_ids:
        if len(queries) == num_queries:
            break
        if document_id in titles:
            title = titles[document_id]
            # Documents that share a title make one query.
            if _normalize(title) in answers_of_title:
                queries[document_id], answers[document_id] = title, answers_of_title.pop(_normalize(title))
        elif choices := list(_removable_sentences(texts[document_id], num_occurrences)):
            queries[document_id], texts[document_id] = generator.choice(choices)
            answers[document_id] = [document_id]
    qrels = _judge(answers, texts)
    if not qrels:
        raise ValueError(
            f"No query can be made from the {len(texts):,} different documents of `{name}`. A query is a title that "
            f"not all documents share, or a sentence of at least {_MIN_WORDS} words whose document has at least "
            f"{_MIN_WORDS} other words. Give documents with a `title` or with several sentences, or judged queries."
        )
    queries = {query_id: queries[query_id] for query_id in qrels}
    return PseudoRetrievalSet(name, texts, queries, qrels, num_titles=len(queries.keys() & titles.keys()))


def _read_distinct_documents(
    name: str, corpus: Corpus, text_column: str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the usable titles and all texts by id. A title that is not usable is part of its text."""
    titles, texts, known = {}, {}, set()
    ids, all_titles, all_texts = ids_titles_and_texts(corpus, text_column=text_column)
    for document_id, title, text in zip(ids, all_titles, all_texts, strict=True):
        title, joined = title.strip(), f"{title} {text}".strip()
        if _normalize(joined) in known:
            continue
        known.add(_normalize(joined))
        # Some corpora repeat the title as a line or sentence of the text.
        sentences = (text[start:end] for start, end in _split(text))
        untitled = "".join(sentence for sentence in sentences if _normalize(sentence) != _normalize(title)).strip()
        if _count_words(title) and _count_words(untitled):
            titles[document_id], texts[document_id] = title, untitled
        else:
            texts[document_id] = joined
    if not any(known):
        raise ValueError(f"None of the {len(ids):,} documents of `{name}` has any text. Check its file.")
    if len(known - {""}) < 2:
        raise ValueError(
            f"Pseudo-queries need at least two different documents, but `{name}` has only one"
            f"{f', {len(ids):,} times' if len(ids) > 1 else ''}. Give a larger corpus."
        )
    return titles, texts


def _count_sentences(titles: dict[str, str], texts: dict[str, str]) -> tuple[Counter[str], dict[str, list[str]]]:
    """Counts each sentence, and finds the documents that have each title, or have it as a sentence."""
    num_occurrences: Counter[str] = Counter()
    holders: dict[str, dict[str, None]] = {_normalize(title): {} for title in titles.values()}
    for document_id, text in texts.items():
        sentences = [_normalize(text[start:end]) for start, end in _split(text)]
        num_occurrences.update(sentences)
        for sentence in (_normalize(titles.get(document_id, "")), *sentences):
            if sentence in holders:
                holders[sentence][document_id] = None
    return num_occurrences, {title: list(document_ids) for title, document_ids in holders.items()}


def _removable_sentences(text: str, num_occurrences: Counter[str]) -> Iterator[tuple[str, str]]:
    """Finds the sentences that can be queries, each with the rest of the text."""
    for start, end in _split(text):
        sentence, rest = text[start:end].strip(), (text[:start] + text[end:]).strip()
        is_long = _count_words(sentence) >= _MIN_WORDS and _count_words(rest) >= _MIN_WORDS
        if is_long and num_occurrences[_normalize(sentence)] == 1 and sentence not in rest:
            yield sentence, rest


def _judge(answers: dict[str, list[str]], texts: dict[str, str]) -> dict[str, dict[str, int]]:
    """Adds the documents that have the same text as an answer. Leaves out queries that all documents answer."""
    same_text = defaultdict(list)
    for document_id, text in texts.items():
        same_text[_normalize(text)].append(document_id)
    qrels = {
        query_id: {twin: 1 for document_id in document_ids for twin in same_text[_normalize(texts[document_id])]}
        for query_id, document_ids in answers.items()
    }
    return {query_id: grades for query_id, grades in qrels.items() if len(grades) < len(texts)}


def _split(text: str) -> list[tuple[int, int]]:
    """Returns where each sentence starts and where the next one does."""
    return [found.span() for found in _SENTENCE.finditer(text)]


def _count_words(text: str) -> int:
    return len(_WORD.findall(text))


def _normalize(text: str) -> str:
    """Makes texts equal that differ in case, white space, the mark at their end, or the marks of a heading."""
    return " ".join(text.casefold().split()).lstrip("#* ").rstrip(f"* {_MARKS_BEFORE_SPACE}{_OTHER_MARKS}")


__all__ = ["PseudoRetrievalSet", "pseudo_retrieval_set"]
