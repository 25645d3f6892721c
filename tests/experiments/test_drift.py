"""The experiment on drift tells growth from change."""

from cde_hf.data import RetrievalSet, save_retrieval_set
from experiments import drift
from experiments.runner.experiment import Setting


TOPICS = {
    "animals": (
        "The {} sleeps in the field.",
        "Where does the {} sleep?",
        ["cat", "dog", "owl", "cow", "hen", "fox", "bear", "wolf"],
    ),
    "money": (
        "The bank lends {} percent more.",
        "Who lends {} percent?",
        ["two", "three", "four", "five", "six", "ten", "nine", "one"],
    ),
}


def test_a_row_for_each_set_tells_growth_from_change(workspace, monkeypatch):
    for name, (document, query, words) in TOPICS.items():
        corpus = {word: document.format(word) for word in words}
        queries = {word: query.format(word) for word in words}
        qrels = {word: {word: 1} for word in words}
        save_retrieval_set(RetrievalSet(name, corpus, queries, qrels), workspace.data / "eval" / name)
    monkeypatch.setattr(drift, "SETS", tuple(TOPICS))
    monkeypatch.setattr(drift, "CONTEXT_SIZE", 4)
    rows = drift.run(Setting(workspace))
    assert [(row["set"], row["other"]) for row in rows] == [("animals", "money"), ("money", "animals")]
    for row in rows:
        assert row["changed 50%"] > 3 * row["grown"]
        assert all(50 < row[name] <= 100 for name in ("old context", "new context"))
    assert drift.report(rows).finding.endswith("of 2 sets.")
