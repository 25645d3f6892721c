"""Queries that are made from a corpus: what becomes one, what answers it, and that nothing of it is left to find."""

import json

import pytest
from datasets import Dataset

from cde_hf.data import pseudo_retrieval_set


ANIMALS = {
    "cat": "The cat sleeps on the sofa. It dreams of a very big mouse. Nobody is allowed to wake it.",
    "dog": "The dog barks at the moon. It waits for a long walk. Nobody has seen it tired.",
    "owl": "The owl hunts at night!",
}
TITLED = {"title": ["Cats", "Dogs", "Owls"], "text": list(ANIMALS.values()), "_id": list(ANIMALS)}


def test_a_title_is_the_query_and_leaves_the_document():
    animals = pseudo_retrieval_set("animals", Dataset.from_dict(TITLED))
    assert animals.corpus == ANIMALS
    assert animals.queries == {"cat": "Cats", "dog": "Dogs", "owl": "Owls"}
    assert animals.qrels == {name: {name: 1} for name in ANIMALS}
    assert (animals.num_titles, animals.num_sentences) == (3, 0)


@pytest.mark.parametrize("place", ["file", "folder without queries"])
def test_titles_are_read_from_files(tmp_path, place):
    rows = [dict(zip(TITLED, row, strict=True)) for row in zip(*TITLED.values(), strict=True)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = path if place == "file" else tmp_path
    assert pseudo_retrieval_set("a", corpus) == pseudo_retrieval_set("a", Dataset.from_dict(TITLED))


def test_a_text_loses_the_sentences_that_repeat_its_title():
    rows = {"title": ["Cats", "Dogs!"], "text": ["# CATS\nCats purr. They sleep.", "Dogs.  They bark."]}
    animals = pseudo_retrieval_set("animals", Dataset.from_dict(rows))
    assert list(animals.corpus.values()) == ["Cats purr. They sleep.", "They bark."]


def test_a_document_with_a_title_alone_keeps_it():
    rows = {"title": ["Cats", "Dogs", "Owls"], "text": ["", "They bark.", "They hoot."]}
    animals = pseudo_retrieval_set("animals", Dataset.from_dict(rows))
    assert animals.corpus["0"] == "Cats"
    assert animals.queries == {"1": "Dogs", "2": "Owls"}


def test_a_sentence_is_taken_out_of_its_document():
    animals = pseudo_retrieval_set("animals", ANIMALS)
    assert animals.queries.keys() == {"cat", "dog"}
    assert (animals.num_titles, animals.num_sentences) == (0, 2)
    for name, sentence in animals.queries.items():
        assert sentence in ANIMALS[name] and sentence not in animals.corpus[name]
        before, after = ANIMALS[name].split(sentence)
        assert animals.corpus[name].split() == [*before.split(), *after.split()]


def test_a_document_that_is_too_short_stays_without_a_query():
    texts = {**ANIMALS, "ant": "The ant carries ten times its weight. It never rests."}
    animals = pseudo_retrieval_set("animals", texts)
    assert not {"owl", "ant"} & animals.queries.keys()
    assert (animals.corpus["owl"], animals.corpus["ant"]) == (texts["owl"], texts["ant"])


def test_the_seed_chooses_the_sentences():
    queries = [pseudo_retrieval_set("animals", ANIMALS, seed=seed).queries for seed in (0, 0, *range(1, 9))]
    assert queries[0] == queries[1]
    assert len({frozenset(each.values()) for each in queries}) > 2


def test_the_queries_are_a_sample_of_the_documents():
    texts = [f"Document {number} is the first sentence. And {number} is in the second one." for number in range(40)]
    samples = [pseudo_retrieval_set("numbers", texts, num_queries=10, seed=seed) for seed in (0, 1)]
    assert [len(sample.queries) for sample in samples] == [10, 10]
    assert samples[0].queries.keys() != samples[1].queries.keys()
    assert sum(sample != text for sample, text in zip(samples[0].corpus.values(), texts, strict=True)) == 10


def test_a_sentence_of_two_documents_is_no_query():
    notice = "Please do not feed the animals here."
    texts = [f"{notice} {text}" for text in ANIMALS.values()]
    for seed in range(9):
        assert notice not in pseudo_retrieval_set("zoo", texts, seed=seed).queries.values()


def test_all_documents_with_a_title_answer_it_and_it_is_asked_once():
    rows = {
        "title": ["Pets", "pets", "Zoo", "Birds"],
        "text": ["Cats purr.", "Dogs bark.", "Owls. Birds.", "Owls hoot."],
    }
    grades = pseudo_retrieval_set("animals", Dataset.from_dict(rows)).qrels.values()
    assert sorted(map(sorted, grades)) == [["0", "1"], ["2"], ["2", "3"]]


def test_documents_that_differ_in_their_title_alone_answer_both():
    rows = {"title": ["Cats", "Felines", "Dogs"], "text": ["They purr.", "They  purr.", "They bark."]}
    qrels = pseudo_retrieval_set("animals", Dataset.from_dict(rows)).qrels
    assert qrels == {"0": {"0": 1, "1": 1}, "1": {"0": 1, "1": 1}, "2": {"2": 1}}


def test_identical_documents_are_kept_once():
    animals = pseudo_retrieval_set("animals", [*ANIMALS.values(), *ANIMALS.values()])
    assert len(animals.corpus) == 3 and len(animals.queries) == 2


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("一只小猫在沙发上睡觉。它梦见了一只大老鼠!", {"一只小猫在沙发上睡觉。"}),
        ("बिल्ली सोफे पर सो रही है। वह चूहे का सपना देखती है।", {"बिल्ली सोफे पर सो रही है।", "वह चूहे का सपना देखती है।"}),
        (
            "ماذا تفعل القطة على الأريكة؟ إنها تحلم بفأر كبير جدا.",
            {"ماذا تفعل القطة على الأريكة؟", "إنها تحلم بفأر كبير جدا."},
        ),
        (
            "one two three four five\r\nsix 3.14 seven eight nine",
            {"one two three four five", "six 3.14 seven eight nine"},
        ),
        ('He said: "Come here now!" Then he left us alone.', {'He said: "Come here now!"', "Then he left us alone."}),
    ],
    ids=["Chinese", "Hindi", "Arabic", "lines", "quotes"],
)
def test_sentences_end_at_the_marks_of_several_scripts(text, sentences):
    found = {pseudo_retrieval_set("one", [text, "Other."], seed=seed).queries["0"] for seed in range(20)}
    assert found >= sentences and all(text.replace(each, "").strip() for each in found)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (["A cat sleeps."], "at least two different documents, but `pets` has only one. Give a larger"),
        (["A cat."] * 5, "but `pets` has only one, 5 times. Give a larger corpus"),
        (["", " "], "None of the 2 documents of `pets` has any text. Check its file"),
        (
            ["A cat sleeps.", "A dog barks."],
            "No query can be made from the 2 different documents of `pets`.* Give doc",
        ),
        ([], "A corpus needs at least one document, but it has none"),
    ],
    ids=["one document", "identical texts", "no text", "one short sentence each", "no document"],
)
def test_a_corpus_that_makes_no_queries_is_refused(corpus, message):
    with pytest.raises(ValueError, match=message):
        pseudo_retrieval_set("pets", corpus)


def test_titles_that_all_documents_share_make_no_queries():
    rows = {"title": ["Pets", "Pets"], "text": ["Cats purr.", "Dogs bark."]}
    with pytest.raises(ValueError, match="a title that not all documents share"):
        pseudo_retrieval_set("pets", Dataset.from_dict(rows))


def test_no_queries_at_all_are_refused():
    with pytest.raises(ValueError, match="`num_queries` must be an integer of at least 1, got 0"):
        pseudo_retrieval_set("animals", ANIMALS, num_queries=0)
