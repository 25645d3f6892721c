"""Paired k-means against planted clusters, a plain FAISS call and a brute-force assignment."""

import faiss
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from cde_hf.batching import KMeansSettings, cluster_pairs, clustering
from cde_hf.batching.clustering import pair_rows


@pytest.fixture
def planted(fixtures):
    return np.load(fixtures / "paired_kmeans" / "paired_kmeans.npz")


@pytest.mark.parametrize("spherical", [False, True])
def test_the_planted_clusters_are_found(planted, spherical):
    settings = KMeansSettings(spherical=spherical, seed=42)
    cluster_ids, _ = cluster_pairs(planted["q"], planted["d"], int(planted["k"]), settings=settings)
    assert adjusted_rand_score(planted["planted"], cluster_ids) == 1.0


@pytest.mark.parametrize("name", ["paired_kmeans", "paired_kmeans_local_optimum"])
@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 42])
def test_the_objective_is_never_worse_than_that_of_plain_faiss(fixtures, name, spherical, seed):
    data = np.load(fixtures / "paired_kmeans" / f"{name}.npz")
    rows = pair_rows(data["q"], data["d"], spherical=spherical)
    plain = faiss.Kmeans(rows.shape[1], int(data["k"]), niter=100, nredo=3, seed=seed, spherical=spherical)
    plain.train(rows)
    settings = KMeansSettings(spherical=spherical, seed=seed)
    _, centroids = cluster_pairs(data["q"], data["d"], int(data["k"]), settings=settings)

    def objective(centroids):
        if spherical:
            return -(rows @ centroids.T).max(axis=1).sum()
        return ((rows[:, None] - centroids) ** 2).sum(axis=-1).min(axis=1).sum()

    assert objective(centroids) <= objective(plain.centroids) * (1 + 1e-6 * np.sign(objective(plain.centroids)))


@pytest.mark.parametrize("num_starts", [1, 2, 3, 6])
def test_k_means_is_trained_once_for_each_start(planted, num_starts, monkeypatch):
    trainings = []

    class CountingKmeans(faiss.Kmeans):
        def train(self, rows):
            trainings.append(self.cp.nredo)
            return super().train(rows)

    monkeypatch.setattr(faiss, "Kmeans", CountingKmeans)
    cluster_pairs(planted["q"], planted["d"], 8, settings=KMeansSettings(num_iterations=5, num_starts=num_starts))
    assert sum(trainings) == num_starts


def many_pairs(num_pairs=4000, num_topics=200, dim=8):
    generator = np.random.default_rng(0)
    topics = generator.normal(size=(num_topics, 2, dim))
    # As in real data, some topics are rare.
    ids = generator.choice(num_topics, num_pairs, p=generator.dirichlet(np.full(num_topics, 0.5)))
    return (topics[ids] + 0.2 * generator.normal(size=(num_pairs, 2, dim))).astype(np.float32).transpose(1, 0, 2)


def distances_to_centroids(queries, documents, cluster_ids, centroids):
    return ((np.concatenate([documents, queries], axis=1) - centroids[cluster_ids]) ** 2).sum(axis=1)


def test_two_levels_are_about_as_good_as_one(monkeypatch):
    queries, documents = many_pairs()
    errors = []
    for min_clusters in (1000, 50):
        monkeypatch.setattr(clustering, "_MIN_CLUSTERS_OF_TWO_LEVELS", min_clusters)
        cluster_ids, centroids = cluster_pairs(queries, documents, 200, settings=KMeansSettings(num_iterations=20))
        assert len(centroids) > 80  # the rows `q⊕d` have the others
        errors.append(distances_to_centroids(queries, documents, cluster_ids, centroids).mean())
    assert errors[1] < 1.25 * errors[0]  # of planted clusters, which six starts find


def test_in_two_levels_nearly_all_pairs_belong_to_the_nearest_centroid(monkeypatch):
    monkeypatch.setattr(clustering, "_MIN_CLUSTERS_OF_TWO_LEVELS", 50)
    queries, documents = many_pairs()
    for spherical in (False, True):
        settings = KMeansSettings(num_iterations=5, spherical=spherical)
        cluster_ids, centroids = cluster_pairs(queries, documents, 200, settings=settings)
        rows = pair_rows(queries, documents, spherical=spherical)[: len(queries)]
        nearest = faiss.knn(rows, centroids, 1)[1][:, 0]
        assert (nearest == cluster_ids).mean() > 0.98


def test_two_levels_take_equal_and_lonely_pairs(monkeypatch):
    monkeypatch.setattr(clustering, "_MIN_CLUSTERS_OF_TWO_LEVELS", 10)
    vectors = np.zeros((500, 4), dtype=np.float32)
    vectors[:20] = 100 * np.random.default_rng(0).normal(size=(20, 4))
    cluster_ids, centroids = cluster_pairs(vectors, vectors, 60)
    assert len(cluster_ids) == 500 and len(centroids) > 1
    assert len(set(cluster_ids[20:])) == 1


def test_a_pair_belongs_to_the_nearest_centroid_of_document_and_query(planted):
    queries, documents = planted["q"], planted["d"]
    cluster_ids, centroids = cluster_pairs(queries, documents, 5)
    rows = np.concatenate([documents, queries], axis=1)
    distances = ((rows[:, None] - centroids) ** 2).sum(axis=-1)
    assert (distances.argmin(axis=1) == cluster_ids).all()


def test_both_orders_of_a_pair_are_rows():
    queries, documents = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
    assert pair_rows(queries, documents).tolist() == [[3, 4, 1, 2], [1, 2, 3, 4]]


def test_no_cluster_is_empty(planted):
    cluster_ids, centroids = cluster_pairs(planted["q"], planted["d"], 100)
    assert (np.bincount(cluster_ids, minlength=len(centroids)) > 0).all()


def test_a_large_domain_is_clustered_from_a_sample(planted):
    settings = KMeansSettings(max_training_pairs=200, seed=1)
    cluster_ids, _ = cluster_pairs(planted["q"], planted["d"], int(planted["k"]), settings=settings)
    assert len(cluster_ids) == 400
    assert adjusted_rand_score(planted["planted"], cluster_ids) > 0.8


def test_half_precision_is_enough(planted):
    arrays = planted["q"].astype(np.float16), planted["d"].astype(np.float16)
    cluster_ids, _ = cluster_pairs(*arrays, int(planted["k"]), settings=KMeansSettings(seed=42))
    assert adjusted_rand_score(planted["planted"], cluster_ids) == 1.0


def test_more_clusters_than_pairs_are_refused(planted):
    with pytest.raises(ValueError, match="between 1 and the number of pairs, 400, got 401"):
        cluster_pairs(planted["q"], planted["d"], 401)
