"""JSONL, CSV and Parquet files as streams of rows."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cde_hf.data.files import find_data_files, read_columns, read_rows


ROWS = [{"query": "a, b", "document": 'say "c"\nd'}, {"query": "e", "document": "f"}]


@pytest.fixture
def parquet_file(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS * 600), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_csv_texts_may_hold_commas_quotes_and_line_breaks(tmp_path):
    (tmp_path / "rows.csv").write_text('query,document\n"a, b","say ""c""\nd"\n\ne,f\n')
    assert read_columns(tmp_path / "rows.csv") == ["query", "document"]
    assert list(read_rows(tmp_path / "rows.csv", [])) == [(3, ROWS[0]), (5, ROWS[1])]


def test_csv_may_be_gzipped(tmp_path):
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"query,document\ne,f\n"))
    assert list(read_rows(tmp_path / "rows.csv.gz", [])) == [(2, ROWS[1])]


def test_a_comma_that_is_not_quoted_is_found(tmp_path):
    (tmp_path / "rows.csv").write_text("query,document\ne,f\na, b,c\n")
    with pytest.raises(ValueError, match="Line 3 of `.*rows.csv` has 3 fields, but the header has 2. Put texts"):
        list(read_rows(tmp_path / "rows.csv", []))


def test_a_quote_that_is_not_closed_is_found(tmp_path):
    (tmp_path / "rows.csv").write_text('query,document\ne,"f\n')
    with pytest.raises(ValueError, match="Line 2 of `.*rows.csv` is not valid CSV .* Fix it, or use JSONL"):
        list(read_rows(tmp_path / "rows.csv", []))


def test_parquet_gives_the_columns_that_are_needed(parquet_file):
    assert read_columns(parquet_file) == ["query", "document"]
    rows = list(read_rows(parquet_file, ["document", "domain"]))
    assert rows[1199] == (1200, {"document": "f"}) and len(rows) == 1200


def test_torn_parquet_names_the_file(parquet_file):
    parquet_file.write_bytes(parquet_file.read_bytes()[:-10])
    with pytest.raises(ValueError, match="rows.parquet` is not a complete Parquet file .* Fetch or write it again"):
        read_columns(parquet_file)


def test_damaged_parquet_names_the_row(parquet_file):
    content = bytearray(parquet_file.read_bytes())
    content[4:60] = b"\xff" * 56
    parquet_file.write_bytes(content)
    with pytest.raises(ValueError, match=r"(?s)rows.parquet` cannot be read after row 0 .* Fetch or write it again"):
        list(read_rows(parquet_file, ["query"]))


def test_json_columns_may_be_missing_in_the_first_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"query": "a"}\n{"query": "b", "document": "c"}\n')
    assert read_columns(tmp_path / "rows.jsonl") == ["query", "document"]


def test_an_empty_file_has_no_columns(tmp_path):
    for name in ("rows.jsonl", "rows.csv"):
        (tmp_path / name).touch()
        assert read_columns(tmp_path / name) == list(read_rows(tmp_path / name, [])) == []


def test_the_files_of_a_folder_come_in_the_order_of_their_names(tmp_path):
    for name in ("b.csv", "a.jsonl.gz", "c.parquet", "README.md", "._hidden.csv"):
        (tmp_path / name).touch()
    (tmp_path / "folder.csv").mkdir()
    assert [path.name for path in find_data_files(tmp_path)] == ["a.jsonl.gz", "b.csv", "c.parquet"]


def test_a_folder_without_data_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        ValueError, match=r"has no data files: found \['notes.txt'\], expected names that end in .jsonl"
    ):
        find_data_files(tmp_path)
