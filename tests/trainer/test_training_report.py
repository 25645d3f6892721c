"""What `cde-hf train` says before and after a training."""

import json

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from cde_hf import Evaluation, contextualize, run_training
from cde_hf.evaluation import Row
from cde_hf.saving import save_biencoder
from cde_hf.trainer.report import describe, use_of_corpus


@pytest.fixture
def command(tiny, tmp_path, monkeypatch):
    """A training that leaves as much as it can to the package."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    save_biencoder(tiny.make_model("plain"), tiny.make_tokenizer(), tmp_path / "encoder", max_length=16)
    rows = tiny.make_pairs(num_pairs=240)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in [*rows["document"], "answer t0w1"])
    )
    options = {
        "model": tmp_path / "encoder",
        "data": tmp_path / "pairs.jsonl",
        "output_dir": tmp_path / "out",
        "max_steps": 4,
        "cluster_size": 32,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


@pytest.mark.parametrize("architecture", ["biencoder", "contextual"])
def test_a_training_shows_the_model_before_and_after_it(command, tmp_path, capsys, architecture):
    run_training([*command, "--architecture", architecture, "--corpus", str(tmp_path / "corpus.jsonl")])
    output = capsys.readouterr().out
    assert "240 pairs: " in output
    assert "The corpus has 241 documents, with 100% of the pairs' documents among them." in output
    assert "Training takes 4 steps of 8 pairs: about" in output or "Training takes 4 steps of 16 pairs" in output
    before, after = output.split("Training takes")
    assert "| after" not in before
    for row in ("before, no context", "before, corpus context", "after, no context", "after, corpus context"):
        assert f"| {row} |" in after
    assert "Training changed NDCG@10 by" in after or "Training did not help" in after
    assert "`before` is the model unchanged" not in output
    assert f"cde-hf contextualize {tmp_path / 'out'} CORPUS" in after
    SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")


def test_an_encoder_with_another_pooling_is_said_to_lose_it(command, tmp_path, capsys):
    encoder = Transformer(str(tmp_path / "encoder"))
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), "cls"), Dense(encoder.get_embedding_dimension(), 8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "encoder"))
    run_training([*command, "--architecture", "biencoder"])
    note = "`before` is the model unchanged, with a `Dense` and pooling by 'cls'."
    assert capsys.readouterr().out.count(note) == 2  # below each table


def test_without_a_corpus_the_model_alone_is_compared(command, capsys):
    run_training([*command, "--architecture", "biencoder"])
    output = capsys.readouterr().out
    assert "| before, no context |" in output
    assert "corpus context" not in output


@pytest.mark.parametrize("is_contextual", [False, True])
def test_the_verdict_says_if_states_are_chosen_by_another_score(is_contextual):
    before, after = (
        Evaluation({"set": {Row(name, "none"): {"ndcg@10": dict.fromkeys("abc", score)}}}, {}, None, 0)
        for name, score in {"before": 0.5, "after": 0.6}.items()
    )
    text = describe(before, after, False, is_contextual)
    assert "Training changed NDCG@10 by +10.0" in text
    assert ("This is without a context. The best state was chosen by its score with one." in text) == is_contextual


def test_a_learning_rate_that_ruins_the_model_gives_the_start_back(command, tmp_path, capsys):
    run_training([*command, "--architecture", "biencoder", "--learning-rate", "10", "--max_grad_norm", "0"])
    assert (
        "Training did not help on the held-out queries: the model keeps the weights of the start."
        in capsys.readouterr().out
    )
    start, end = (SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("encoder", "out"))
    assert (start.encode(["t0w1 t0w2"]) == end.encode(["t0w1 t0w2"])).all()


def test_a_corpus_without_the_documents_of_the_pairs_is_noticed(command, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("something else\nand more of it\n")
    run_training([*command, "--architecture", "biencoder", "--corpus", str(tmp_path / "other.txt")])
    assert "None of the pairs' documents are in the corpus. Check `--corpus`" in capsys.readouterr().out


def test_a_corpus_with_titles_before_the_documents_of_the_pairs_is_recognised(command, tmp_path, capsys):
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    titled = [json.dumps({"title": "t0w3", "text": row["document"]}) for row in rows]
    (tmp_path / "titled.jsonl").write_text("\n".join(titled))
    options = [*command, "--architecture", "biencoder", "--corpus", str(tmp_path / "titled.jsonl")]
    run_training(options)
    assert "The corpus has the pairs' documents with titles in front" in capsys.readouterr().out
    run_training([*options, "--text-column", "text", "--overwrite"])
    assert "with 100% of the pairs' documents among them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("score", "advice"), [(0.9, "cde-hf contextualize out CORPUS"), (0.1, "use the model unchanged")]
)
def test_a_corpus_is_advised_unless_it_does_harm(score, advice):
    scores = {Row("after", "none"): 0.5, Row("after", "corpus"): score}
    rows = {row: {"ndcg@10": {f"q{number}": value for number in range(20)}} for row, value in scores.items()}
    after = Evaluation({"set": rows}, {}, None, 0)
    assert advice in use_of_corpus(after, "out", needs_trust=False)


def test_a_model_that_is_adapted_to_a_corpus_is_not_trained(command, tmp_path):
    contextualize("minilm", ["The cat sleeps.", "A dog barks."]).save(str(tmp_path / "adapted"))
    with pytest.raises(ValueError, match="is adapted to a corpus, which training would undo. Train the model that"):
        run_training([*command, "--model", str(tmp_path / "adapted")])
    assert not (tmp_path / "out" / "plan").exists()


def test_a_missing_corpus_is_named_before_anything_is_made(command, tmp_path):
    with pytest.raises((OSError, ValueError), match=r"no-such-corpus\.jsonl"):
        run_training([*command, "--corpus", str(tmp_path / "no-such-corpus.jsonl")])
    assert not (tmp_path / "out" / "plan").exists()


def test_a_training_that_is_resumed_at_its_end_reports_the_same(command, tmp_path, capsys):
    outputs = []
    for _ in range(2):
        run_training([*command, "--architecture", "biencoder", "--resume-from-checkpoint", "auto"])
        outputs.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("|")])
    assert outputs[0] == outputs[1]
    assert any("after" in line for line in outputs[0])


def test_weak_labels_are_pointed_out(command, tiny, tmp_path, capsys):
    rows = list(tiny.make_pairs(num_pairs=240))
    for number, row in enumerate(rows):
        row["query"] = rows[number % 60]["query"]  # four answers each
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_training([*command, "--architecture", "biencoder"])
    output = capsys.readouterr().out
    assert "These labels look weak: queries have several answers" in output


@pytest.mark.parametrize(
    "options", [["--held-out", "0"], ["--save-strategy", "no"], ["--eval-strategy", "no"]], ids=" ".join
)
def test_nothing_is_held_out_on_request(command, capsys, options):
    run_training([*command, "--architecture", "biencoder", *options])
    output = capsys.readouterr().out
    assert "No queries are held out" in output
    assert "ndcg@10" not in output


def test_held_out_queries_beside_a_test_set_are_refused(command, tmp_path):
    with pytest.raises(ValueError, match="`held_out=30` was given with `eval_data`, `plan` or a strategy"):
        run_training([*command, "--held-out", "30", "--eval-data", str(tmp_path / "pairs.jsonl")])


def test_many_small_domains_are_trained_on(command, tiny, tmp_path):
    rows = list(tiny.make_pairs(num_pairs=240))
    for number, row in enumerate(rows):
        row["domain"] = f"domain {number % 30}"
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_training([*command, "--architecture", "biencoder", "--cluster_size", "4"])
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_pairs_that_are_all_alike_are_refused(command, tmp_path):
    row = json.dumps({"query": "t0w1", "document": "t0w2", "domain": "a"})
    (tmp_path / "pairs.jsonl").write_text(f"{row}\n{row}\n")
    with pytest.raises(ValueError, match="A model learns by telling pairs apart"):
        run_training(command)
