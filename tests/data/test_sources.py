"""From every source to the same rows: files, folders, datasets in memory, on disk and on the Hub."""

import gzip
import json
import logging

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from cde_hf.data import sources
from cde_hf.data.sources import find_file, open_tables, read_lines


ROWS = [{"query": "a, b", "document": 'say "c"\nd'}, {"query": "007", "document": "2020-01-01"}]
DATASET = Dataset.from_dict({"query": ["a", "b"], "document": ["c", "d"], "picture": [1, 2]})


def read(path):
    """All rows of a file with their places."""
    (table,) = open_tables(path)
    return list(table.read(table.columns))


def write(path, rows):
    """Writes rows in the format of a file's name, gzipped or not."""
    table = Dataset.from_list(rows)
    name = path.name.removesuffix(".gz")
    plain = path.with_name(name)
    if name.endswith((".csv", ".tsv")):
        table.to_csv(plain, sep="\t" if name.endswith(".tsv") else ",")
    elif name.endswith(".parquet"):
        table.to_parquet(plain)
    else:
        lines = [json.dumps(row) for row in rows]
        plain.write_text("\n".join(lines) if name.endswith(".jsonl") else f"[{', '.join(lines)}]")
    if path != plain:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


FORMATS = ["jsonl", "jsonl.gz", "json", "json.gz", "csv", "csv.gz", "tsv", "tsv.gz", "parquet"]


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_same_rows(tmp_path, ending):
    (table,) = open_tables(write(tmp_path / f"faq.{ending}", ROWS))
    assert [row for _, row in table.read(["query", "document"])] == ROWS
    assert (table.name, table.columns) == ("faq", {"query": True, "document": True})


def test_a_saved_dataset_gives_the_same_rows(tmp_path):
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "faq")
    DatasetDict(train=Dataset.from_list(ROWS), test=DATASET).save_to_disk(tmp_path / "splits")
    assert [row for _, row in read(tmp_path / "faq")] == [row for _, row in read(tmp_path / "splits")] == ROWS
    assert [row for _, row in open_tables(tmp_path / "splits", "test")[0].read(["query"])] == [
        {"query": "a"},
        {"query": "b"},
    ]
    with pytest.raises(ValueError, match=r"splits` has no split `dev`, but \['train', 'test'\]"):
        open_tables(tmp_path / "splits", "dev")


def test_a_broken_saved_dataset_names_the_folder(tmp_path):
    DATASET.save_to_disk(tmp_path / "faq")
    (tmp_path / "faq" / "state.json").write_text("[" * 10_000)
    with pytest.raises(ValueError, match="faq` is not a complete dataset of `save_to_disk` .* Save it again"):
        open_tables(tmp_path / "faq")


def test_rows_have_places(tmp_path):
    (tmp_path / "rows.csv").write_text('query,document\n"a, b","say ""c""\nd"\n\ne,f\n')
    assert [place for place, _ in read(tmp_path / "rows.csv")] == [
        f"line {number} of `{tmp_path / 'rows.csv'}`" for number in (3, 5)
    ]
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n  \n{"a": 2}')
    assert read(tmp_path / "rows.jsonl")[1] == (f"line 4 of `{tmp_path / 'rows.jsonl'}`", {"a": 2})
    (tmp_path / "rows.json").write_text('[\n{"a": 1}, "text"]')
    assert read(tmp_path / "rows.json")[1] == (f"row 2 of `{tmp_path / 'rows.json'}`", {"text": "text"})
    assert list(open_tables(DATASET.with_format("numpy"))[0].read(["document", "domain"]))[1] == (
        "row 2 of `the dataset`",
        {"document": "d"},
    )


def test_json_may_have_an_object_a_line(tmp_path):
    (tmp_path / "rows.json").write_text('\n{"a": 1}\n{"a": 2}\n')
    assert [row for _, row in read(tmp_path / "rows.json")] == [{"a": 1}, {"a": 2}]


def test_only_columns_of_texts_hold_texts(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": null, "b": 1}\n{"a": "x", "c": ["y"]}\n')
    assert open_tables(tmp_path / "rows.jsonl")[0].columns == {"a": True, "b": False, "c": False}
    table = pa.table({"a": pa.array(["x"], pa.large_string()).dictionary_encode(), "b": [1], "c": [["y"]]})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert open_tables(tmp_path / "rows.parquet")[0].columns == {"a": True, "b": False, "c": False}


def test_long_texts_are_read(tmp_path):
    rows = [{"text": "x" * 200_000}]
    assert [row for _, row in read(write(tmp_path / "rows.csv", rows))] == rows


def test_a_folder_gives_a_table_for_each_file_named_without_shard_number(tmp_path):
    write(tmp_path / "faq.jsonl.gz", ROWS)
    DATASET.to_parquet(tmp_path / "a-00000-of-00002.parquet")
    for name in ("README.md", "report.json", "notes.txt", "._hidden.csv"):
        (tmp_path / name).write_text("not JSON")
    (tmp_path / "folder.csv").mkdir()
    tables = open_tables(tmp_path)
    assert [table.name for table in tables] == ["a", "faq"]
    assert [list(table.columns) for table in tables] == [["query", "document", "picture"], ["query", "document"]]


def test_a_folder_of_text_files_is_a_table_of_documents(tmp_path):
    (tmp_path / "b.txt").write_text("two\nlines\n")
    (tmp_path / "a.md").write_text("one")
    (tmp_path / "empty.txt").write_text("\n")
    assert [row for _, row in read(tmp_path)] == [
        {"_id": "a.md", "text": "one"},
        {"_id": "b.txt", "text": "two\nlines"},
    ]


def test_a_folder_or_file_of_other_data_is_refused(tmp_path):
    (tmp_path / "notes.docx").touch()
    with pytest.raises(ValueError, match=r"has no data files: found \['notes.docx'\], expected names that end in"):
        open_tables(tmp_path)
    with pytest.raises(ValueError, match="notes.docx` has the ending `.docx`, but must have one of .jsonl, .csv"):
        open_tables(tmp_path / "notes.docx")


def test_the_identity_changes_with_the_file(tmp_path):
    for path in (tmp_path / "faq.jsonl", tmp_path / "texts" / "a.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"query": "a"}\n')
        source = path if path.suffix == ".jsonl" else path.parent
        identity = open_tables(source)[0].identity
        assert open_tables(str(source))[0].identity == identity
        path.write_text('{"query": "bb"}\n')
        assert open_tables(source)[0].identity != identity


def test_a_table_of_a_folder_is_found_by_name(tmp_path):
    assert find_file(tmp_path, "corpus") is None
    path = write(tmp_path / "corpus.tsv.gz", ROWS)
    assert find_file(tmp_path, "corpus") == path


def test_a_name_on_the_hub_is_loaded_by_datasets_and_said(monkeypatch, caplog):
    calls = []
    monkeypatch.setattr(sources, "load_dataset", lambda *args, **kwargs: calls.append((args, kwargs)) or DATASET)
    with caplog.at_level(logging.WARNING, "cde_hf"):
        (table,) = open_tables("sentence-transformers/natural-questions", "train[:10]")
    assert calls == [(("sentence-transformers/natural-questions",), {"split": "train[:10]"})]
    assert table.name == "sentence-transformers/natural-questions"
    assert "There is no file or folder `sentence-transformers/natural-questions`, so the dataset" in caplog.text


def test_a_path_goes_before_a_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "load_dataset", None)
    (tmp_path / "owner").mkdir()
    DATASET.save_to_disk("owner/name")
    assert len(read("owner/name")) == 2


def test_a_name_that_is_nowhere_is_refused():
    with pytest.raises(FileNotFoundError, match="`nobody/nothing` is no local file or folder, and could not be load"):
        open_tables("nobody/nothing")


@pytest.mark.parametrize("error", [ValueError("Config name is missing."), ConnectionError("Offline.")])
def test_what_the_hub_says_is_passed_on(monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(sources, "load_dataset", fail)
    with pytest.raises(FileNotFoundError, match=rf"could not be loaded from the Hub \({error}\)"):
        open_tables("owner/name")


@pytest.mark.parametrize(
    "source",
    [
        "./absent",
        "~/absent",
        "/a/b",
        "a/b/c",
        "absent",
        "absent.jsonl.gz",
        "b/absent.parquet",
        "b/a.csv",
        "b/a.tsv.gz",
    ],
)
def test_a_path_is_not_taken_for_a_name_on_the_hub(source, monkeypatch):
    monkeypatch.setattr(sources, "load_dataset", None)
    with pytest.raises(FileNotFoundError, match="There is no file or folder '.*'. Check the path"):
        open_tables(source)


def test_files_have_no_splits(tmp_path):
    write(tmp_path / "faq.jsonl", ROWS)
    with pytest.raises(ValueError, match="`split='test'` was given, but only datasets on disk or on the Hub have"):
        open_tables(tmp_path / "faq.jsonl", "test")


def test_a_dict_of_datasets_is_refused_with_a_hint():
    with pytest.raises(TypeError, match=r"splits \['train', 'test'\]. Did you mean `dataset\['train'\]`\?"):
        open_tables(DatasetDict(train=DATASET, test=DATASET))
    with pytest.raises(TypeError, match=r"Did you mean `dataset\['test'\]`\?"):
        open_tables(DatasetDict(test=DATASET))


def test_a_stream_is_refused_with_a_hint():
    with pytest.raises(TypeError, match="got a `IterableDataset`. Load it without `streaming=True`"):
        open_tables(IterableDataset.from_generator(lambda: iter(())))


def test_local_files_are_read_without_the_loader_of_the_hub(tmp_path, monkeypatch):
    # `load_dataset` counts its calls on a server, also for local files.
    monkeypatch.setattr(datasets.load, "increase_load_count", None)
    for ending in FORMATS:
        assert len(read(write(tmp_path / f"faq.{ending}", ROWS))) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"query,document\ne,f\na, b,c\n", "Line 3 of `.*csv` has 3 fields, but the header has 2. Put"),
        ("rows.tsv", b"query\tdocument\ne\n", "Line 2 of `.*tsv` has 1 fields, but the header has 2. Put"),
        ("rows.csv", b'query,document\ne,"f\n', "Line 2 of `.*rows.csv` is not valid CSV .* Fix it, or use JSONL"),
        ("rows.csv", b"text,text\na,b\n", "rows.csv` has two columns of one name: .* Rename one of them"),
        ("rows.jsonl", b'{"a": 1}\n{"a": \n', "Line 2 of `.*rows.jsonl` is not valid JSON .* fix or remove it"),
        ("rows.jsonl", b'["query"]\n', "Line 1 of `.*` holds a `list`, but every line must hold one JSON object"),
        ("rows.jsonl", b'{"a": ' + b"[" * 10_000, "Line 1 of `.*rows.jsonl` is not valid JSON .*recursion"),
        ("rows.json", b"[" * 10_000 + b"]" * 10_000, "`.*rows.json` is not valid JSON .*recursion"),
        ("rows.json", b'[{"a": 1}, 2]', "Row 2 of `.*rows.json` is a `int`, but must be an object or a text"),
        ("rows.txt", b"fine\n" + "naïve".encode("latin-1"), "Line 2 of `.*` is not UTF-8: byte 0xef at column 2"),
        ("rows.jsonl.gz", b'{"a": 1}\n', "jsonl.gz` cannot be unpacked after line 0 .* incomplete or not a gzip"),
        ("rows.parquet", b"PAR1", "rows.parquet` is not a complete Parquet file .* Fetch or write it again"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


def test_damaged_parquet_names_the_row(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS * 600), tmp_path / "rows.parquet")
    content = bytearray((tmp_path / "rows.parquet").read_bytes())
    content[4:60] = b"\xff" * 56
    (tmp_path / "rows.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"(?s)rows.parquet` cannot be read at or after the first row .* Fetch or"):
        read(tmp_path / "rows.parquet")


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_gzip_names_the_file(tmp_path, damage):
    path = tmp_path / "rows.jsonl.gz"
    content = bytearray(gzip.compress(b"".join(b'{"number": %d}\n' % number for number in range(20_000))))
    content[len(content) // 2] ^= 0xFF if damage == "flip" else 0
    path.write_bytes(content[:-20] if damage == "cut" else content)
    with pytest.raises(ValueError, match="rows.jsonl.gz`"):
        read(path)


def test_an_empty_file_has_no_columns(tmp_path):
    for name in ("rows.jsonl", "rows.json", "rows.csv", "rows.txt"):
        (tmp_path / name).touch()
        assert open_tables(tmp_path / name)[0].columns == {}


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffa\r\n\ufeffb".encode())
    assert list(read_lines(tmp_path / "text")) == [(1, "a\r\n"), (2, "\ufeffb")]


def test_a_csv_of_a_spreadsheet_may_have_semicolons(tmp_path):
    (tmp_path / "faq.csv").write_text(
        '\ufeffquery;document\nWho, if any?;"A dog; it\nbarks."\nb;c, d\n', encoding="utf-8"
    )
    (table,) = open_tables(tmp_path / "faq.csv")
    assert [row for _, row in table.read([])] == [
        {"query": "Who, if any?", "document": "A dog; it\nbarks."},
        {"query": "b", "document": "c, d"},
    ]
