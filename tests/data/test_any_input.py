"""Whatever the files hold, the readers give it back, or name the file and where in it the fault is."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cde_hf.data import load_corpus, load_documents, load_retrieval_set
from cde_hf.data.cleaning import BadRowError, make_pair
from cde_hf.data.sources import open_tables


some = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ROWS = st.lists(st.fixed_dictionaries({"a": TEXTS, "b": TEXTS}), min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=5,
)
ENDINGS = [".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz"]


def write(path, rows):
    """Writes rows without the library that reads them, where there is another."""
    if ".csv" in path.name or ".tsv" in path.name:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if ".csv" in path.name else "\t")
            writer.writerows([["a", "b"], *([row["a"], row["b"]] for row in rows)])
    elif ".parquet" in path.name:
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ".jsonl" in path.name:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), newline="")
    else:
        path.write_text(json.dumps(rows, indent=1))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != ".txt"])
@some
@given(rows=ROWS)
def test_all_texts_come_back(tmp_path, ending, rows):
    write(tmp_path / f"rows{ending}", rows)
    (table,) = open_tables(tmp_path / f"rows{ending}")
    assert [row for _, row in table.read(["a", "b"])] == rows
    assert load_documents(tmp_path / f"rows{ending}", text_column="b") == [row["b"] for row in rows]


@pytest.mark.parametrize("ending", ENDINGS)
@some
@given(content=st.binary())
@example(b"\xef\xbb\xbf")
@example(b"[" * 10_000)
@example(b'{"a":' * 10_000)
@example(b'"')
@example(b"\r\r\n")
@example(b"\x1f\x8b")
def test_a_file_of_any_bytes_is_read_or_named(tmp_path, ending, content):
    path = tmp_path / f"rows{ending}"
    path.write_bytes(content)
    try:
        (table,) = open_tables(path)
        assert all(place.endswith(f" of `{path}`") for place, _ in table.read(table.columns))
    except ValueError as error:
        assert f"`{path}`" in str(error)


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
@some
@given(value=JSON, identifier=JSON, title=JSON)
def test_a_document_of_any_json_is_a_text_or_named(tmp_path, ending, value, identifier, title):
    path = tmp_path / f"rows{ending}"
    rows = [{"text": "fine"}, {"text": value, "_id": identifier, "title": title}]
    path.write_text("\n".join(map(json.dumps, rows)) if ending == ".jsonl" else json.dumps(rows))
    try:
        corpus = load_corpus(path)
    except ValueError as error:
        place = "ine 2" if ending == ".jsonl" else "ow 2"
        assert f"{place} of `{path}`" in str(error) or "The id" in str(error) or "Ids occur" in str(error)
    else:
        assert len(corpus) == 2
        "".join([*corpus, *corpus.values()]).encode()  # no half of a character


@some
@given(line=st.text())
def test_any_judgement_is_read_or_named(tmp_path, line):
    for name, row in (("corpus.jsonl", {"_id": "d", "text": "A dog."}), ("queries.jsonl", {"_id": "q", "text": "?"})):
        (tmp_path / name).write_text(json.dumps(row))
    (tmp_path / "qrels.tsv").write_bytes(f"q\td\t1\n{line}\n".encode(errors="surrogatepass"))
    try:
        assert load_retrieval_set(tmp_path).qrels == {"q": {"d": 1}}
    except ValueError as error:
        assert "qrels.tsv`" in str(error)


@some
@given(value=st.none() | st.integers() | st.binary() | st.lists(st.text()) | st.just("half \ud83d"))
def test_what_is_no_text_in_a_list_is_named_by_its_row(value):
    with pytest.raises((TypeError, ValueError), match="[dD]ocument `1`"):
        load_documents(["fine", value])


@some
@given(row=st.dictionaries(st.sampled_from(["query", "document", "negatives", "domain"]), JSON | st.binary()))
def test_any_row_is_a_pair_or_bad(row):
    columns = {name: [name] for name in ("query", "document", "negatives", "domain")}
    try:
        pair = make_pair(row, columns, default_domain="pets")
    except BadRowError:
        return
    texts = [pair["query"], pair["document"], pair["domain"], *pair["negatives"]]
    assert all(isinstance(text, str) and text.strip() and text.encode() for text in texts)
