"""Two small libraries for the tests of the docstring corpus, installed as pip would do it."""

import pytest

from cde_hf.data.docstrings import LIBRARIES


def docstring(summary, body):
    return f'"""{summary}\n\n{body}\n"""\n'


@pytest.fixture
def bodies():
    """Four texts that are long enough to be documents."""
    return [
        f"The {word} text says something of its own, in so many words that nobody could call it short or empty."
        for word in ("first", "second", "third", "fourth")
    ]


@pytest.fixture
def library_folder(tmp_path, bodies, monkeypatch):
    """Folder with the libraries `ants` and `bees`, the latter with a text of the former. They cannot be imported."""
    folder = tmp_path / "installed"
    files = {
        "ants/__init__.py": 'raise RuntimeError("This library must not be imported.")\n',
        "ants/b.py": "def walk():\n    " + docstring("Walk over the ants.", bodies[0]),
        "ants/a.py": docstring("About all the ants.", bodies[1]) + 'def plain():\n    """Nothing to say."""\n',
        "ants/tests/a.py": docstring("Test all the ants.", bodies[2]),
        "ants-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ants\nVersion: 1.0\n",
        "bees/__init__.py": docstring("About all the bees.", bodies[1])
        + 'raise RuntimeError("Not to be imported.")\n',
        "bees/hive.py": "class Hive:\n    " + docstring("Where all the bees live.", bodies[3]),
        "bees-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: bees\nVersion: 2.0\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(LIBRARIES, "ants", "ants")
    monkeypatch.setitem(LIBRARIES, "bees", "bees")
    return folder
