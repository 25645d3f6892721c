"""The libraries of the docstring corpus."""

import logging
import platform

import click
import pytest

from cde_hf.data import HELD_OUT_LIBRARIES, LIBRARIES, library_versions
from cde_hf.data.docstrings import find_libraries


def test_about_forty_libraries_are_listed_in_order():
    assert 35 <= len(LIBRARIES) <= 45
    assert list(LIBRARIES) == sorted(LIBRARIES)
    assert len(HELD_OUT_LIBRARIES) == 4 and set(HELD_OUT_LIBRARIES) < set(LIBRARIES)


def test_libraries_are_found_without_being_imported(library_folder):
    assert find_libraries(["bees", "ants"]) == {
        "ants": ("1.0", library_folder / "ants"),
        "bees": ("2.0", library_folder / "bees"),
    }


def test_versions_are_reported_in_the_order_of_the_names(library_folder):
    versions = library_versions()
    assert list(versions) == sorted(versions)
    assert versions.items() >= {"ants": "1.0", "bees": "2.0", "python": platform.python_version()}.items()


def test_the_folder_is_where_the_source_files_lie():
    assert str(find_libraries(["click"])["click"].folder / "__init__.py") == click.__file__
    assert (find_libraries(["python"])["python"].folder / "argparse.py").is_file()


def test_a_library_that_is_not_installed_is_left_out(monkeypatch, caplog):
    monkeypatch.setitem(LIBRARIES, "wasps", "wasps")
    with caplog.at_level(logging.INFO, "cde_hf"):
        assert list(find_libraries(["click", "wasps"])) == ["click"]
    assert "Not installed, so missing from the docstring corpus: wasps." in caplog.text


def test_a_folder_of_that_name_alone_is_no_library(library_folder, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "wasps", "ants")
    with pytest.raises(ValueError, match=r"None of the libraries \['wasps'\] is installed. Choose others"):
        find_libraries(["wasps"])


def test_an_unknown_library_is_refused():
    with pytest.raises(ValueError, match=r"`libraries` has \['sklearn'\], which .* Choose from .*'scikit-learn'"):
        find_libraries(["click", "sklearn"])
