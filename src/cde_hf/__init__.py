"""
cde-hf: contextual document embeddings for Hugging Face, text embeddings that know the corpus they are used on.

The public names are in `__init__.pyi`, for type checkers too.
"""

from .lazy import lazy_names


__version__ = "0.1.0.dev0"
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
