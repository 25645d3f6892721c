"""What makes a row a good pair."""

import pytest

from cde_hf.data.cleaning import BadRowError, CleaningReport, make_pair, pair_digest


COLUMNS = {"query": ["query"], "document": ["document"], "negatives": ["negatives"], "domain": ["domain"]}
ROW = {"query": "Who barks?", "document": "A dog.", "negatives": ["A cat."], "domain": "pets"}


def test_a_good_row_stays_as_it_is():
    assert make_pair({**ROW, "picture": 1}, COLUMNS, default_domain=None) == ROW


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"query": None}, "null"),
        ({"document": 3}, "wrong_type"),
        ({"document": b"A dog."}, "wrong_type"),
        ({"document": ["A dog."]}, "wrong_type"),
        ({"document": " \n\t"}, "empty"),
        ({"query": ""}, "empty"),
        ({"domain": None}, "null"),
        ({"domain": 7}, "wrong_type"),
        ({"query": "half a character \ud800"}, "not_unicode"),
        ({"negatives": ["half a character \ud800"]}, "not_unicode"),
        ({"negatives": 3}, "wrong_type_negative"),
        ({"negatives": ["A cat.", 3]}, "wrong_type_negative"),
        ({"negatives": ["A cat.", None]}, "null_negative"),
        ({"negatives": ["A cat.", " "]}, "empty_negative"),
        ({"negatives": ["A cat.", "A dog."]}, "negative_is_document"),
    ],
)
def test_a_bad_row_is_named_by_its_kind(change, kind):
    with pytest.raises(BadRowError, match=f"^{kind}$"):
        make_pair({**ROW, **change}, COLUMNS, default_domain=None)


def test_a_missing_key_is_a_null():
    with pytest.raises(BadRowError, match="^null$"):
        make_pair({"query": "Who barks?"}, COLUMNS, default_domain="pets")


def test_a_row_without_domain_gets_the_default():
    assert make_pair({**ROW, "domain": None}, COLUMNS, default_domain="animals")["domain"] == "animals"
    assert make_pair(ROW, COLUMNS, default_domain="animals")["domain"] == "pets"


@pytest.mark.parametrize(
    ("columns", "negatives"),
    [(["list"], ["x", "y"]), (["one"], ["x"]), (["one", "two"], ["x", "y"]), (["none"], []), (["nothing"], [])],
)
def test_negatives_come_from_lists_texts_or_several_columns(columns, negatives):
    row = {**ROW, "list": ["x", "y"], "one": "x", "two": "y", "none": None}
    assert make_pair(row, {**COLUMNS, "negatives": columns}, default_domain=None)["negatives"] == negatives


def test_pairs_are_the_same_by_domain_query_and_document():
    assert pair_digest(ROW) == pair_digest({**ROW, "negatives": []})
    others = [{**ROW, name: "other"} for name in ("query", "document", "domain")]
    assert len({pair_digest(pair) for pair in (ROW, *others)}) == 4


def test_the_report_counts_by_kind_and_names_the_first():
    places = {"empty": "line 3 of `faq.jsonl`", "wrong_type": "row 7 of `faq.parquet`"}
    report = CleaningReport(2000, {"empty": 2, "wrong_type": 1000}, places)
    assert report.num_pairs == 998
    assert str(report) == (
        "1,002 of 2,000 rows are bad: 2 empty (first: line 3 of `faq.jsonl`); "
        "1,000 wrong type (first: row 7 of `faq.parquet`)."
    )
