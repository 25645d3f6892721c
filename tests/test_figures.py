"""The picture of the method is what its code draws."""

import runpy
from pathlib import Path
from xml.etree import ElementTree


DOCS = Path(__file__).parents[1] / "docs"


def test_the_picture_is_drawn_by_its_code():
    drawn = runpy.run_path(str(DOCS / "figures.py"))["draw"]()
    assert drawn == (DOCS / "method.svg").read_text()


def test_it_has_a_background_of_its_own_so_that_it_can_be_read_on_a_dark_page():
    background = ElementTree.parse(DOCS / "method.svg").getroot().find("{http://www.w3.org/2000/svg}rect")
    assert background.attrib["fill"] == "#ffffff"
    assert (background.attrib["width"], background.attrib["height"]) == ("900", "450")


def test_every_picture_of_a_result_has_a_background():
    for path in (DOCS / "results").rglob("*.svg"):
        assert "fill: #ffffff" in path.read_text()[:2500], path.name
