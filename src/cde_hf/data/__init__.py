"""Pairs to train on and retrieval sets to test with: readers, checks, prompts and a corpus that needs no download."""

from .checks import check_counts, check_positive, check_seed
from .cleaning import CleaningReport, check_pairs
from .corpora import Corpus, check_ids, check_texts, ids_and_texts, load_corpus, load_documents
from .docstrings import HELD_OUT_LIBRARIES, LIBRARIES, docstring_pairs, docstring_split, library_versions
from .held_out import hold_out
from .pair_facts import PairFacts
from .pairs import PairSource, clean_sources, load_pairs, load_sources, parse_columns
from .parquet_corpora import ParquetCorpus
from .prompts import NO_PROMPTS, Prompts
from .pseudo_queries import PseudoRetrievalSet, pseudo_retrieval_set
from .retrieval_sets import RetrievalSet, load_retrieval_set, retrieval_set_from_pairs, save_retrieval_set


__all__ = [
    "HELD_OUT_LIBRARIES",
    "LIBRARIES",
    "NO_PROMPTS",
    "CleaningReport",
    "Corpus",
    "PairFacts",
    "PairSource",
    "ParquetCorpus",
    "Prompts",
    "PseudoRetrievalSet",
    "RetrievalSet",
    "check_counts",
    "check_ids",
    "check_pairs",
    "check_positive",
    "check_seed",
    "check_texts",
    "clean_sources",
    "docstring_pairs",
    "docstring_split",
    "hold_out",
    "ids_and_texts",
    "library_versions",
    "load_corpus",
    "load_documents",
    "load_pairs",
    "load_retrieval_set",
    "load_sources",
    "parse_columns",
    "pseudo_retrieval_set",
    "retrieval_set_from_pairs",
    "save_retrieval_set",
]
