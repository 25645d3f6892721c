"""The best small model is saved as it is used, and its card says how good it is."""

from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer

from cde_hf import Evaluation
from cde_hf.retrieval import Row
from experiments.best import OURS, build_model, make_card
from experiments.runner.scoring import LEXICAL_SIZE


def test_the_model_is_saved_as_it_is_used(workspace, config):
    folder = build_model(workspace, config)
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert (model[0].model.config.pooling, model[0].model.config.lexical_size) == ("context_frequency", LEXICAL_SIZE)
    assert model.max_seq_length == 64  # the tiny encoder has no more positions
    model[0].set_context(["A cat sleeps.", "An owl flies."])
    assert model.encode(["The dog barks."]).shape == (1, 32 + LEXICAL_SIZE)


def test_the_card_has_the_scores_and_the_domains(workspace, config):
    scores = {"pets": {Row(OURS): {metric: {"q": 0.5} for metric in ("ndcg@10", "mrr@10", "recall@100")}}}
    card = ModelCard(make_card(build_model(workspace, config), config, Evaluation(scores, {}, 4, 0)))
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert card.data.eval_results[0].metric_value == 50.0
    assert "| domains | farm, zoo |" in card.text
    assert f"| {OURS} | 50.0 | 50.0 |" in card.text
