"""The experiment on drift runs, and tells growth from change."""

import runpy
from pathlib import Path

from cde_hf import RetrievalSet, save_retrieval_set


SCRIPT = Path(__file__).parents[2] / "experiments" / "drift.py"
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


def test_it_writes_a_row_for_each_set(tmp_path, monkeypatch, capsys):
    for name, (document, query, words) in TOPICS.items():
        corpus = {word: document.format(word) for word in words}
        queries = {word: query.format(word) for word in words}
        qrels = {word: {word: 1} for word in words}
        save_retrieval_set(RetrievalSet(name, corpus, queries, qrels), tmp_path / name)
    folders = [str(tmp_path / name) for name in TOPICS]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--data", *folders, "--context-size", "4"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["animals, money", "money, animals"]
    for row in rows:
        grown, changed = float(row[1]), float(row[4])
        assert changed > 3 * grown
        assert all(50 < float(score) <= 100 for score in row[5:])
