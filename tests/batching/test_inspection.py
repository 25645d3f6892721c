"""The page about a batch plan, read as text and opened in a browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from cde_hf import ClusteredBatchSampler, FalseNegativeFilter
from cde_hf.batching import format_batch, format_statistics, write_inspection_page


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Outline(HTMLParser):
    """Headings, and tags that are left open."""

    def __init__(self):
        super().__init__()
        self.open_tags, self.headings = [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "rect"):
            self.open_tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attributes}, "the page must not load anything"

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open_tags.pop() == tag

    def handle_data(self, data):
        if self.open_tags and self.open_tags[-1] in ("h1", "h2"):
            self.headings.append(data)


@pytest.fixture
def page(plan, tmp_path):
    write_inspection_page(plan, tmp_path / "plan.html")
    return tmp_path / "plan.html"


def test_the_page_is_whole_and_loads_nothing(page):
    outline = Outline()
    outline.feed(page.read_text())
    assert not outline.open_tags
    assert outline.headings == [
        "Batch plan plan",
        "Cluster sizes",
        "Hardness",
        "Filtered negatives by domain",
        "Sample clusters",
        "In a batch",
        "Negatives that the filter removes",
    ]


def test_a_batch_shows_the_hardest_negative_of_a_query(plan, pairs):
    samples = json.loads((plan.folder / "samples.json").read_text())["batch"]
    rows = np.asarray(next(iter(ClusteredBatchSampler(plan, samples["size"]))))
    scores, is_false = FalseNegativeFilter(plan)(rows)
    negatives = [column for column in range(1, len(rows)) if not is_false[0, column]]
    hardest = max(negatives, key=lambda column: scores[0, column])
    first = samples["queries"][0]
    assert first["query"] == pairs["query"][int(rows[0])]
    assert first["hardest"] == pairs["document"][int(rows[hardest])]
    assert first["num_filtered"] == is_false[0].sum()
    shown = " ".join(first["hardest"].split())[:100]
    assert re.search(rf"hardest negative  {re.escape(shown)}…? \({first['hardest_score']}\)", format_batch(plan))


def test_sample_clusters_show_their_texts(page, pairs):
    text = page.read_text()
    assert sum(query in text for query in pairs["query"]) >= 20


def test_texts_are_escaped(plan, tmp_path, monkeypatch):
    samples = (plan.folder / "samples.json").read_text()
    (tmp_path / "copy").mkdir()
    for path in plan.folder.iterdir():
        shutil.copy(path, tmp_path / "copy")
    copy = type(plan).load(tmp_path / "copy")
    samples = samples.replace("question", "<script>alert(1)</script>")
    samples = re.sub(r'"size": \d+', '"size": "<script>alert(2)</script>"', samples)
    (tmp_path / "copy" / "samples.json").write_text(samples)
    for entry in copy.manifest["statistics"]["batches"]:
        entry["batch_size"] = f"<script>{entry['batch_size']}</script>"
    write_inspection_page(copy, tmp_path / "plan.html")
    assert "<script>" not in (tmp_path / "plan.html").read_text()


def test_the_terminal_shows_the_same_numbers(plan):
    text = format_statistics(plan)
    assert "240 pairs, 2 domains, 8 clusters" in text
    assert f"{plan.manifest['statistics']['batches'][0]['hardness']:.3f}" in text


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_opens_the_page_without_errors(page, tmp_path):
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-sync",
    ]
    command += [
        "--enable-logging=stderr",
        "--v=0",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        f"file://{page}",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Sample clusters" in result.stdout
    assert "CONSOLE" not in result.stderr
