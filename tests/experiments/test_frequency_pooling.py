"""The experiment on context-frequency pooling: what its table and its page say."""

from experiments import frequency_pooling
from experiments.frequency_pooling import FOREIGN, OWN, PLAIN, SPECIAL, STEEP_FOREIGN, STEEP_OWN


def test_the_table_of_libraries_has_their_means():
    ways = [PLAIN, OWN, FOREIGN, STEEP_OWN, STEEP_FOREIGN]
    ways += [f"{way}, {SPECIAL}" for way in ways[-2:]]
    means = {way: {"north": 15.0 + 5 * number, "south": 50.0} for number, way in enumerate(ways)}
    lines = frequency_pooling.libraries_table(means).splitlines()
    assert lines[2] == "| north | 15.0 | 20.0 | 25.0 | 30.0 | 35.0 | 40.0 | 45.0 |"
    assert lines[-1] == "| **mean** | 32.5 | 35.0 | 37.5 | 40.0 | 42.5 | 45.0 | 47.5 |"


def test_own_frequencies_are_tested_on_each_set_and_on_all():
    results = {
        PLAIN: {"north": {"q1": 0.1, "q2": 0.3}, "south": {"q3": 0.5, "q4": 0.5}},
        OWN: {"north": {"q1": 0.2, "q2": 0.4}, "south": {"q3": 0.8, "q4": 0.8}},
        FOREIGN: {"north": {"q1": 0.2, "q2": 0.4}, "south": {"q3": 0.5, "q4": 0.5}},
    }
    rows = frequency_pooling.significance_rows(results)
    points = {(row["set"], row["way"]): round(row["ndcg@10"], 6) for row in rows}
    assert points == {
        ("north", PLAIN): 10.0,
        ("north", FOREIGN): 0.0,
        ("south", PLAIN): 30.0,
        ("south", FOREIGN): 30.0,
        ("mean", PLAIN): 20.0,
        ("mean", FOREIGN): 15.0,
    }
    assert all(0 <= row["p"] <= 1 for row in rows)


def test_a_source_counts_once():
    values = {"reddit_gaming": 1.0, "reddit-books": 3.0, "law": 6.0}
    assert frequency_pooling.mean_of_sources(values) == 4.0
