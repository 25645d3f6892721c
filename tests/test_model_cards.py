"""The cards of the models that the project makes."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard


CARDS = sorted((Path(__file__).parents[1] / "model_cards").glob("*.md"))


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.name)
def test_a_card_parses_and_has_its_scores_or_says_that_it_has_none(path):
    card = ModelCard(path.read_text())
    assert card.data.base_model
    metrics = {result.metric_type for result in card.data.eval_results or ()}
    assert "ndcg@10" in metrics or "This card has no scores, so the quality of the model is unknown." in card.text
