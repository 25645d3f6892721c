# The names of this package. `lazy.py` reads this file, and so do type checkers and editors.
from .contextual_index import ContextualIndex as ContextualIndex
from .drift import Drift as Drift
from .qdrant import QdrantIndex as QdrantIndex
from .state import SearchHit as SearchHit
