"""The arithmetic of the page on GPUs and clusters: its tables are what its code gives."""

import re
from pathlib import Path

import pytest
import torch

from cde_hf import CDEConfig, CDEModel


PAGE = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text()


@pytest.fixture(scope="module")
def names():
    names = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    return names


def rows(first_name):
    """Cells of the table whose first column has a name, as numbers."""
    table = re.search(rf"^\| {first_name} \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)[0]
    return [[float(cell) for cell in re.findall(r"[\d.]+", line)] for line in table.strip().splitlines()[2:]]


def test_operations_per_text(names):
    table = rows("tokens")
    assert len(table) == 4
    for length, *cells in table:
        biencoder, joint, prefix = (names[mode](int(length)) / 1e9 for mode in ("biencoder", "joint", "prefix"))
        assert cells == pytest.approx([biencoder, joint, prefix, joint / prefix, prefix / biencoder], abs=0.05)


def test_operations_per_pair(names):
    table = rows("batch size")
    assert len(table) == 2
    for batch_size, *cells in table:
        modes = (names[mode] for mode in ("biencoder", "joint", "prefix"))
        biencoder, joint, prefix = (names["per_pair"](mode, batch_size) / 1e9 for mode in modes)
        assert cells == pytest.approx([biencoder, joint, prefix, joint / biencoder, prefix / biencoder], abs=0.05)


def test_short_texts_widen_the_gap(names):
    biencoder, joint, prefix = (
        names["per_pair"](names[mode], 4096, length=128) for mode in ("biencoder", "joint", "prefix")
    )
    assert (round(joint / biencoder, 1), round(prefix / biencoder, 2)) == (5.5, 1.15)


def test_the_epoch_of_the_biencoder(names):
    epoch = 235e6 * 3 * names["per_pair"](names["biencoder"], 1024)
    assert epoch == pytest.approx(1.8e20, rel=0.02)
    assert epoch / (8 * 24 * 3600) == pytest.approx(256e12, rel=0.01)


def test_the_sizes_of_model_and_block(names):
    config = CDEConfig(context_size=512)
    with torch.device("meta"):
        model = CDEModel(config)
    assert round(model.num_parameters() / 1e6) == 288
    assert config.num_block_tokens == names["block"]
    linear_layers = [m for m in model.second_stage_model.backbone.modules() if isinstance(m, torch.nn.Linear)]
    assert sum(layer.weight.numel() for layer in linear_layers) == names["weights"]
