"""The command `cde-hf`."""

import json
import subprocess
import sys

import numpy as np
import pytest
from transformers import AutoModel

from cde_hf.cli import build_parser, main


def test_convert_writes_our_layout(fixtures, tmp_path, capsys):
    main(["convert", str(fixtures / "cde-v1-tiny"), str(tmp_path / "cde-small-v1")])
    assert "no tokenizer" in capsys.readouterr().out
    model, report = AutoModel.from_pretrained(tmp_path / "cde-small-v1", output_loading_info=True)
    assert not any(report.values())
    assert model.config.context_size == 12


def test_a_missing_checkpoint_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(tmp_path / "absent"), str(tmp_path / "out")])
    assert stopped.value.code == 1
    assert "absent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["convert", "prepare", "inspect"])
def test_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args([command, "--help"])
    assert f"example: cde-hf {command} " in capsys.readouterr().out


@pytest.fixture
def pairs_file(tmp_path):
    topics = ["cat purrs sofa", "dog barks moon", "whale swims sea"]
    rows = [{"ask": f"q{n} {topics[n % 3]}", "reply": f"d{n} {topics[n % 3]} x{n % 7}"} for n in range(60)]
    path = tmp_path / "animals.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prepare_and_inspect(pairs_file, tmp_path, capsys):
    plan = str(tmp_path / "plan")
    options = ["--columns", "query=ask", "document=reply", "--surrogate-dim", "4", "--cluster-size", "20"]
    main(["prepare", str(pairs_file), plan, *options])
    assert "60 pairs, 1 domains, 3 clusters" in capsys.readouterr().out
    main(["inspect", plan])
    assert "60 pairs" in capsys.readouterr().out
    assert "<h2>Sample clusters</h2>" in (tmp_path / "plan.html").read_text()


def test_the_graph_backend_is_an_option(pairs_file, tmp_path, capsys):
    options = ["--columns", "query=ask", "document=reply", "--surrogate-dim", "4", "--cluster-size", "20"]
    main(["prepare", str(pairs_file), str(tmp_path / "plan"), *options, "--backend", "graph"])
    assert "3 clusters" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_prepare_the_same_plan(pairs_file, tmp_path):
    options = ["--columns", "query=ask", "document=reply", "--surrogate-dim", "4", "--cluster-size", "20"]
    main(["prepare", str(pairs_file), str(tmp_path / "one"), *options])
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m", "cde_hf.cli"]
    subprocess.run([*launch, "prepare", str(pairs_file), str(tmp_path / "two"), *options], check=True)
    for path in (tmp_path / "one").glob("*.npy"):
        np.testing.assert_array_equal(np.load(path), np.load(tmp_path / "two" / path.name))


def test_the_command_is_installed():
    result = subprocess.run(
        [sys.executable, "-m", "cde_hf.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("cde-hf ")
