"""The page to play with, in a real browser."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest


pytest.importorskip("gradio")
sync_api = pytest.importorskip("playwright.sync_api")

APP = Path(__file__).parents[2] / "examples" / "space" / "app.py"
CHROMIUM = shutil.which("chromium")
CORPUS = """\
The Cervin printer does not start. Check the cable of the printer and the fuse behind the cover.
The Cervin printer prints blank pages. The printer head is dry: start a cleaning cycle twice.
The Cervin printer prints labels askew. Set the guides of the printer tray to the width of the roll.
The Cervin printer is slow over the network. Give the printer a fixed address.
The Cervin printer forgets its settings. Replace the battery on the board of the printer.
Paper is stuck in the Cervin printer. Open the rear door of the printer and pull the sheet upwards.
The Cervin printer smells of ozone. Replace the filter of the printer once a year.
Colours of the Cervin printer are pale. Calibrate the printer with the supplied chart.
The Cervin printer shows error 41. The fuser of the printer is too hot: wait ten minutes.
The display of the Cervin printer is dark. Hold the power key of the printer for five seconds.
Guides and rolls for narrow labels can be ordered under number 88-2.
A crooked label is nearly always a loose roll. Tighten both guides.
"""
QUESTION = "Where do I order guides for the printer?"


@pytest.fixture
def address(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    server = subprocess.Popen([sys.executable, str(APP)], env=environment)
    for _ in range(1200):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait()


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
def test_a_question_shows_both_lists_and_nothing_leaves_the_machine(address, tmp_path):
    hosts, errors = set(), []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1250})
        page.on("request", lambda request: hosts.add(urlparse(request.url).hostname))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.get_by_label("... or your own, one document per line").fill(CORPUS)
        page.get_by_role("button", name="Read the corpus").click()
        page.get_by_text("12 documents are ready").wait_for(timeout=300_000)
        page.get_by_label("Question").fill(QUESTION)
        page.get_by_label("Question").press("Enter")
        page.locator("#contextual li").nth(9).wait_for(timeout=120_000)
        lists = {name: page.locator(f"#{name} li").all_inner_texts() for name in ("plain", "contextual")}
        terms = page.locator("#terms tr").all_inner_texts()
        page.screenshot(path=os.environ.get("SCREENSHOT", tmp_path / "page.png"), full_page=True)
        browser.close()
    assert len(lists["plain"]) == len(lists["contextual"]) == 10
    assert "Guides and rolls" in lists["contextual"][0] and "↑ was" in lists["contextual"][0]
    assert "Guides and rolls" not in lists["plain"][0]
    assert any(row.split()[:2] == ["printer", "83.3%"] for row in terms)  # 10 of 12 documents
    assert hosts <= {"127.0.0.1", None}  # `None` of data: and blob: addresses
    assert errors == []
