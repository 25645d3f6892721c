"""
Clusters from a graph of neighbours, in which the nearest ones are left out.

The nearest neighbours of a pair are often right answers to its query. Clustering by distance glues exactly those
together. Here a pair is linked to the neighbours of a *window* of ranks, after the B3 paper (arXiv 2505.11293):

1. The closeness of two pairs is the sum of the scores of each query with the other's document.
2. Each pair is linked to its neighbours of the ranks `first_rank` to `first_rank + num_neighbours`.
3. METIS cuts the graph into communities of equal size with few links between them.
"""

from dataclasses import dataclass

import faiss
import numpy as np
from scipy.sparse import csr_matrix

from .clustering import pair_rows


# Up to this number of pairs the search for neighbours is exact; above it looks into the nearest cells of a partition.
_MAX_EXACT_PAIRS = 50_000


@dataclass(frozen=True)
class GraphSettings:
    """
    Settings of [`find_communities`].

    Args:
        first_rank (`int`, *optional*, defaults to `5`):
            Number of nearest neighbours to leave out: the likely false negatives.
        num_neighbours (`int`, *optional*, defaults to `20`):
            Number of neighbours after these to link a pair to.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the partition.
    """

    first_rank: int = 5
    num_neighbours: int = 20
    seed: int = 0


def find_communities(
    queries: np.ndarray,
    documents: np.ndarray,
    num_clusters: int,
    *,
    rows: np.ndarray | None = None,
    settings: GraphSettings | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Clusters pairs into communities of their neighbour graph.

    Args:
        queries (`np.ndarray` of shape `(num_pairs, dim)`):
            Surrogate vectors of the queries.
        documents (`np.ndarray` of shape `(num_pairs, dim)`):
            Surrogate vectors of the documents.
        num_clusters (`int`):
            Number of communities.
        rows (`np.ndarray` of shape `(num_pairs,)`, *optional*):
            The pairs to cluster, such as those of a domain. All of them must fit into memory.
        settings (`GraphSettings`, *optional*):
            How to build the graph.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Community of each pair, of shape `(num_pairs,)`, and their mean rows `d⊕q` of
        shape `(num_found, 2 * dim)`.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ImportError("Clustering by a graph needs pymetis: `pip install 'cde-hf[graph]'`.") from error

    settings = settings or GraphSettings()
    num_pairs = len(queries) if rows is None else len(rows)
    rows = pair_rows(queries, documents) if rows is None else pair_rows(queries[rows], documents[rows])
    if num_clusters == 1:
        community_ids = np.zeros(num_pairs, dtype=np.int64)
    else:
        graph = _window_graph(rows, settings)
        adjacency = pymetis.CSRAdjacency(graph.indptr, graph.indices)
        _, parts = pymetis.part_graph(num_clusters, adjacency, options=pymetis.Options(seed=settings.seed))
        community_ids = np.asarray(parts)
    _, community_ids, sizes = np.unique(community_ids, return_inverse=True, return_counts=True)
    centroids = np.zeros((len(sizes), rows.shape[1]), dtype=np.float32)
    np.add.at(centroids, community_ids, rows[:num_pairs])
    return community_ids.astype(np.int32), centroids / sizes[:, None].astype(np.float32)


def _window_graph(rows: np.ndarray, settings: GraphSettings) -> csr_matrix:
    """Symmetric graph over the pairs: `rows` holds all `d⊕q` and then all `q⊕d`."""
    num_pairs = len(rows) // 2
    # The product of one pair's `d⊕q` and another's `q⊕d` is the sum of both queries' scores with the other's document.
    index = _neighbour_index(rows[num_pairs:], seed=settings.seed)
    num_wanted = min(num_pairs, settings.first_rank + settings.num_neighbours + 1)
    neighbours = index.search(rows[:num_pairs], num_wanted)[1]
    is_other = (neighbours != np.arange(num_pairs)[:, None]) & (neighbours >= 0)
    rank = np.cumsum(is_other, axis=1) - 1  # (num_pairs, num_wanted), of the others only
    first_rank = min(settings.first_rank, num_wanted - 2)
    is_linked = is_other & (rank >= first_rank) & (rank < first_rank + settings.num_neighbours)
    source, column = np.nonzero(is_linked)
    target = neighbours[source, column]
    links = csr_matrix((np.ones(len(source), dtype=np.int32), (source, target)), shape=(num_pairs, num_pairs))
    return (links + links.T).tocsr()


def _neighbour_index(rows: np.ndarray, *, seed: int) -> faiss.Index:
    num_rows, dim = rows.shape
    if num_rows <= _MAX_EXACT_PAIRS:
        index = faiss.IndexFlatIP(dim)
    else:
        index = faiss.index_factory(dim, f"IVF{int(4 * num_rows**0.5)},Flat", faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = seed
        index.nprobe = 32
        index.train(rows)
    index.add(rows)
    return index


__all__ = ["GraphSettings", "find_communities"]
