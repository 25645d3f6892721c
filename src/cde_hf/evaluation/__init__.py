"""
Evaluation on retrieval sets: systems, baselines, metrics and tests of significance.

The names are in `__init__.pyi`, for type checkers too.
"""

from ..lazy import lazy_names


__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
