"""Lines and JSON objects of text files, and what is said about broken ones."""

import gzip

import pytest

from cde_hf.data.files import read_json_lines, read_lines


@pytest.fixture
def gzip_file(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"number": %d}\n' % number for number in range(20_000))))
    return path


def test_lines_are_numbered_from_one_and_keep_their_ends(tmp_path):
    (tmp_path / "text").write_bytes("a\r\nü".encode())
    assert list(read_lines(tmp_path / "text")) == [(1, "a\r\n"), (2, "ü")]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffa\n\ufeffb".encode())
    assert list(read_lines(tmp_path / "text")) == [(1, "a\n"), (2, "\ufeffb")]


def test_gzip_is_unpacked(gzip_file):
    assert list(read_json_lines(gzip_file))[-1] == (20_000, {"number": 19_999})


def test_blank_lines_are_passed_over_but_counted(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n  \n{"a": 2}')
    assert list(read_json_lines(tmp_path / "rows.jsonl")) == [(1, {"a": 1}), (4, {"a": 2})]


def test_torn_gzip_names_the_file(gzip_file):
    gzip_file.write_bytes(gzip_file.read_bytes()[:-20])
    with pytest.raises(
        ValueError, match=r"rows.jsonl.gz` cannot be unpacked after line \d+ .* fetch or write it again"
    ):
        list(read_json_lines(gzip_file))


def test_damaged_gzip_names_the_file(gzip_file):
    content = bytearray(gzip_file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    gzip_file.write_bytes(content)
    with pytest.raises(ValueError, match="rows.jsonl.gz`"):
        list(read_json_lines(gzip_file))


def test_plain_text_under_a_gzip_name_is_refused(tmp_path):
    (tmp_path / "rows.jsonl.gz").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="jsonl.gz` cannot be unpacked after line 0 .* incomplete or not a gzip file"):
        list(read_lines(tmp_path / "rows.jsonl.gz"))


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "text").write_bytes(b"fine\n" + "naïve".encode("latin-1"))
    with pytest.raises(ValueError, match="Line 2 of `.*text` is not UTF-8: byte 0xef at column 2. Convert the file"):
        list(read_lines(tmp_path / "text"))


def test_a_line_that_is_not_json_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(ValueError, match="Line 2 of `.*rows.jsonl` is not valid JSON .* fix or remove it"):
        list(read_json_lines(tmp_path / "rows.jsonl"))


def test_a_line_that_holds_no_object_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('["query", "document"]\n')
    with pytest.raises(ValueError, match="Line 1 of `.*` holds a JSON list, but every line must hold one JSON object"):
        list(read_json_lines(tmp_path / "rows.jsonl"))
