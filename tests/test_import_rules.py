"""Who may import whom inside of the package, read from the source files."""

import ast
import sys
from pathlib import Path

import pytest

import cde_hf


PACKAGE = Path(cde_hf.__file__).parent

# Each part and the parts it may import. `modeling` ships inside of every checkpoint, so it sees nothing of ours. All
# others may see `files` and `messages` too.
MAY_IMPORT = {
    "files": set(),
    "lazy": set(),
    "messages": set(),
    "processes": set(),
    "modeling": set(),
    "data": set(),
    "model_names": set(),
    "contextual_models": {"modeling", "data", "model_names"},
    "saving": {"modeling", "data", "contextual_models"},
    "vectors": {"modeling", "data", "contextual_models"},
    "embeddings": {"contextual_models", "vectors"},
    "encoding": {"modeling", "data", "contextual_models", "vectors", "processes"},
    "encoding_on_ray": {"data", "encoding"},
    "batching": {"data", "processes"},
    "evaluation": {"modeling", "data", "contextual_models", "vectors", "lazy"},
    "index": {"modeling", "data", "contextual_models", "vectors", "encoding", "evaluation", "lazy"},
    "onnx": {"modeling", "contextual_models"},
    "model_card": {"evaluation"},
    "hub": {"model_card"},
    "trainer": {
        "modeling",
        "data",
        "contextual_models",
        "batching",
        "evaluation",
        "saving",
        "model_names",
        "model_card",
        "hub",
        "processes",
    },
}


def imported_names(path):
    """Absolute dotted names of all that a file of the package imports from the package."""
    package = ["cde_hf", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def violations(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imported_names(path):
        parts = name.split(".")
        if parts[0] != "cde_hf" or part not in MAY_IMPORT:
            continue
        if parts[1] != part and parts[1] not in MAY_IMPORT[part] | (
            {"files", "messages"} if part != "modeling" else set()
        ):
            yield name


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_go_one_way(path):
    assert not list(violations(path))


def test_every_part_has_its_arrows_and_the_command_line_sees_all():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - MAY_IMPORT.keys() == {"__init__", "cli"}


def test_a_wrong_arrow_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "readers.py"
    path.write_text(
        "from ..modeling import CDEModel\nfrom cde_hf.batching import plan\nfrom .prompts import PROMPTS\n"
    )
    assert list(violations(path)) == ["cde_hf.modeling.CDEModel", "cde_hf.batching.plan"]


# How `SECURITY.md` names what the shipped files import beside the standard library.
NAMES = {
    "huggingface_hub": "huggingface-hub",
    "numpy": "NumPy",
    "onnxruntime": "onnxruntime",
    "safetensors": "safetensors",
    "scipy": "SciPy",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
    "torch": "PyTorch",
    "transformers": "transformers",
}


def test_shipped_files_import_what_the_page_on_security_names():
    page = (Path(__file__).parents[1] / "SECURITY.md").read_text()
    for path in (PACKAGE / "modeling").glob("*.py"):
        imported = {name.partition(".")[0] for name in imported_names(path)} - {"cde_hf"}
        assert imported.isdisjoint({"subprocess", "multiprocessing", "socket", "pickle", "ctypes"}), path.name
        assert all(NAMES[name] in page for name in imported - sys.stdlib_module_names), path.name


# Packages of extras that the environment of `make test-lowest` lacks. One failed import would stop all its tests.
OPTIONAL = {"bertopic", "griffe", "mkdocs", "mteb", "onnx", "onnxruntime", "onnxscript", "qdrant_client", "ray"}


def test_tests_skip_where_an_optional_package_is_missing():
    tests = Path(__file__).parent
    for path in set(tests.rglob("*.py")) - set(tests.glob("integrations/**/*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                assert OPTIONAL.isdisjoint(name.partition(".")[0] for name in names), (path.name, names)


def test_shipped_files_are_flat_and_import_one_name_at_a_time():
    # What transformers copies into a checkpoint it finds by a regular expression that knows `from .name import X`
    # alone.
    for path in (PACKAGE / "modeling").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module and "." not in node.module, (path.name, ast.unparse(node))
