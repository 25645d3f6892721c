"""The command `cde-hf`."""

import subprocess
import sys

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


def test_help_teaches(capsys):
    for arguments in (["--help"], ["convert", "--help"]):
        with pytest.raises(SystemExit):
            build_parser().parse_args(arguments)
    output = capsys.readouterr().out
    assert "write a released checkpoint" in output
    assert "example: cde-hf convert jxm/cde-small-v1 cde-small-v1" in output


def test_the_command_is_installed():
    result = subprocess.run(
        [sys.executable, "-m", "cde_hf.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("cde-hf ")
