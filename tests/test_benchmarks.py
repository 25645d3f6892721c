"""The benchmarks run, and their tables have a place on the page."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
TINY_STEP = "--layers 1 --width 64 --length 8 --context-size 4 --mini-batch-size 2 --max-plain-batch-size 4"
TINY_RUNS = {
    "attention.py": "--layers 1 --context-size 8 --lengths 8 --batch-sizes 1 2 --max-joint-batch-size 1 --seconds 0",
    "corpus_part.py": "--documents 20 30 --words 8 --texts 4 --seconds 0",
    "encoding.py": "--models MiniLM --context-size 8 --texts 4 --batch-sizes 2 --max-words 8 --seconds 0",
    "gpu.py": f"--device cpu --texts 2 --rounds 1 {TINY_STEP} --batch-sizes 4 8",
    "imports.py": "--rounds 1",
    "precision.py": "--model MiniLM --forms bfloat16 int8 --context-size 8 --lengths 8 --batch-sizes 2 --seconds 0",
    "surrogate.py": "--library packaging --texts 4 --seconds 0",
    "training.py": f"{TINY_STEP} --batch-sizes 4 8 --max-joint-batch-size 4 --seconds 0",
    "training_memory.py": f"{TINY_STEP} --batch-sizes 4 8 --kinds prefix",
}


@pytest.fixture(scope="module")
def report():
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_has_a_place_and_a_tiny_run(report):
    page = report.PAGE.read_text()
    tables = report.TABLES | report.GPU_TABLES
    for name in tables:
        assert page.count(f"<!-- table: {name} -->") == 1, name
    assert {script for script, *_ in tables.values()} == TINY_RUNS.keys()


def test_a_table_replaces_its_predecessor_alone(report):
    page = "a\n<!-- table: x -->\nold\n<!-- end of table -->\nb\n<!-- table: y -->\nold\n<!-- end of table -->\n"
    page = report.put_table(page, "x", "| new |\n")
    assert page == (
        "a\n<!-- table: x -->\n\n| new |\n\n<!-- end of table -->\nb\n<!-- table: y -->\nold\n<!-- end of table -->\n"
    )
    assert report.put_table(page, "x", "| new |\n") == page


def test_a_page_without_a_place_is_refused(report):
    with pytest.raises(ValueError, match="no place for the table `x`. Add"):
        report.put_table("a page", "x", "| new |\n")


def test_only_a_whole_run_says_how_long_it_took(report):
    assert "duration" not in report.TABLES
    assert report.PAGE.read_text().count("<!-- table: duration -->") == 1
    assert "`make bench-full`, which took" in report.describe_duration(120.0, is_full=True)
    assert report.describe_duration(120.0, is_full=False).endswith("processor time in 2 minutes.\n")


@pytest.mark.slow
def test_the_load_of_a_tiny_index_is_measured(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "load.py", "--documents", "100", "--changes", "20"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("100 |") == 8


@pytest.mark.slow
def test_the_memory_of_a_tiny_evaluation_is_measured(tmp_path):
    systems = ["--systems", "model", "contextualized"]
    command = [sys.executable, ROOT / "benchmarks" / "evaluation.py", "--documents", "200", "300", *systems]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert len([line for line in result.stdout.splitlines() if "00 |" in line]) == 4


@pytest.mark.slow
def test_the_growth_of_tiny_batch_plans_is_measured(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "batching.py", "--pairs", "9000", "--level-pairs", "10000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    levels, growth = (line for line in result.stdout.splitlines() if line[2].isdigit())
    one, two, ratio = (float(cell) for cell in levels.split("|")[3:6])
    assert two < one / 5 and ratio < 1.1
    assert growth.startswith("| 9,000 |"), levels


@pytest.mark.slow
@pytest.mark.parametrize("script", TINY_RUNS)
def test_a_tiny_run_writes_a_table(tmp_path, report, script):
    command = [sys.executable, ROOT / "benchmarks" / script, *TINY_RUNS[script].split()]
    is_drawn = script in {report.TABLES[name][0] for name in report.PLOTS}
    if is_drawn:
        command += ["--plot", "plot.svg"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    header, line, *rows = result.stdout.strip().split("\n")
    assert len(rows) > 0
    assert all(row.count("|") == header.count("|") == line.count("|") for row in rows)
    assert (tmp_path / "plot.svg").exists() == is_drawn
