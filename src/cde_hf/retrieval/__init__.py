"""
Evaluation on retrieval sets, training-free adaptation to a corpus, the index, and bulk encoding.

The names are in `__init__.pyi`, for type checkers too.
"""

from ..lazy import lazy_names


__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
