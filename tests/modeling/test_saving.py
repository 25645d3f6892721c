"""Round trips through the disk, also into a process that cannot import this package."""

import json
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from cde_hf import CDEModel, save_checkpoint


@pytest.fixture(params=["joint", "prefix"])
def model(make_model, request):
    return make_model("bert", "modernbert", context_attention=request.param, pooling="context_frequency")


def assert_equal_weights(first, second):
    first, second = first.state_dict(), second.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=0, rtol=0)


@pytest.mark.parametrize("family", ["nomic_bert", "modernbert", "bert", "roberta", "distilbert"])
def test_every_family_survives_the_disk(make_model, family, tmp_path):
    model = make_model(family)
    model.save_pretrained(tmp_path)
    loaded, report = CDEModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_equal_weights(model, loaded)


def test_sharded_checkpoints_survive_the_disk(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_equal_weights(model, CDEModel.from_pretrained(tmp_path))


def test_bfloat16_survives_the_disk(model, tmp_path):
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = CDEModel.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert_equal_weights(model, loaded)


def test_only_safetensors_are_written(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]


def test_auto_classes_know_the_model(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "cde"
    assert_equal_weights(model, AutoModel.from_pretrained(tmp_path))


def test_the_mode_can_be_changed_when_loading(make_model, tmp_path):
    make_model(context_attention="joint").save_pretrained(tmp_path)
    assert CDEModel.from_pretrained(tmp_path, context_attention="prefix").second_stage_model.encode_block()


def test_a_model_built_from_a_used_models_config_is_as_new(make_model, texts):
    model = make_model(context_attention="prefix")
    model.second_stage_model(*texts)
    again = CDEModel(model.config)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(
        again.eval().second_stage_model(*texts), model.second_stage_model(*texts), atol=0, rtol=0
    )


def test_the_attention_wrapper_is_not_written(model, texts, tmp_path):
    model.second_stage_model(*texts)
    model.save_pretrained(tmp_path)
    assert "cde_" not in (tmp_path / "config.json").read_text()


def test_no_file_of_a_checkpoint_names_a_folder_of_this_machine(minilm, tmp_path):
    encoder = tmp_path / "private" / "encoder"
    shutil.copytree(minilm, encoder)
    model = CDEModel.from_biencoder(encoder, context_size=3)
    assert model.config.second_stage_config.name_or_path == str(encoder)
    save_checkpoint(model, AutoTokenizer.from_pretrained(encoder), tmp_path / "private" / "trained")
    CDEModel.from_pretrained(tmp_path / "private" / "trained").save_pretrained(tmp_path / "again")
    model = SentenceTransformer(str(tmp_path / "private" / "trained"), trust_remote_code=True, device="cpu")
    model.save(str(tmp_path / "sentence_transformers"), create_model_card=False)
    model[0].model.config.to_json_file(tmp_path / "all_fields.json", use_diff=False)
    folders = (tmp_path / "private" / "trained", tmp_path / "again", tmp_path / "sentence_transformers")
    written = [tmp_path / "all_fields.json", *(path for each in folders for path in each.rglob("*") if path.is_file())]
    assert len(written) > 20
    assert not [path for path in written if str(tmp_path).encode() in path.read_bytes()]


def run_without_the_package(script, folder):
    absent = """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "cde_hf":
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Absent())
    """
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "PATH": ""}
    command = [sys.executable, "-c", textwrap.dedent(absent) + textwrap.dedent(script)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_remote_code_works_where_the_package_is_absent(model, texts, context_documents, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    model.save_pretrained(checkpoint)
    assert json.loads((checkpoint / "config.json").read_text())["auto_map"] == {
        "AutoConfig": "configuration_cde.CDEConfig",
        "AutoModel": "modeling_cde.CDEModel",
    }
    inputs = {"input_ids": texts[0], "attention_mask": texts[1]}
    context = {"context_input_ids": context_documents[0], "context_attention_mask": context_documents[1]}
    save_file({**inputs, **context}, tmp_path / "inputs.safetensors")
    script = """
        import torch
        from safetensors.torch import load_file, save_file
        from transformers import AutoModel

        model, report = AutoModel.from_pretrained("checkpoint", trust_remote_code=True, output_loading_info=True)
        assert not any(report.values()), report
        assert type(model).__module__.startswith("transformers_modules")
        data = load_file("inputs.safetensors")
        ids, mask = data["input_ids"], data["attention_mask"]
        with torch.no_grad():
            context = model.first_stage_model(
                input_ids=data["context_input_ids"], attention_mask=data["context_attention_mask"]
            )
            vectors = model.second_stage_model(input_ids=ids, attention_mask=mask, dataset_embeddings=context)
        encoded = model.encode_context(data["context_input_ids"], data["context_attention_mask"])
        texts = model.encode_texts(ids, mask, context=encoded)
        model.save_pretrained("again")
        save_file({"context": context, "vectors": vectors, "texts": texts}, "outputs.safetensors")
    """
    run_without_the_package(script, tmp_path)
    outputs = load_file(tmp_path / "outputs.safetensors")
    with torch.no_grad():
        expected = model.first_stage_model(*context_documents)
        torch.testing.assert_close(outputs["context"], expected, atol=1e-6, rtol=0)
        expected = model.second_stage_model(*texts, dataset_embeddings=expected)
        torch.testing.assert_close(outputs["vectors"], expected, atol=1e-5, rtol=0)
    expected = model.encode_texts(*texts, context=model.encode_context(*context_documents))
    torch.testing.assert_close(outputs["texts"], expected, atol=1e-5, rtol=0)
    assert_equal_weights(model, CDEModel.from_pretrained(tmp_path / "again"))
    assert {path.name for path in checkpoint.glob("*.py")} == {path.name for path in (tmp_path / "again").glob("*.py")}


def test_the_code_of_a_checkpoint_names_the_package_for_what_only_the_package_does(model, tmp_path, fixtures):
    model.save_pretrained(tmp_path / "checkpoint")
    shutil.copytree(fixtures / "cde-v1-tiny", tmp_path / "released")
    script = """
        from transformers import AutoModel

        model = AutoModel.from_pretrained("checkpoint", trust_remote_code=True)
        for load in (type(model).from_biencoder, type(model).from_pretrained):
            try:
                load("released")
                raise AssertionError
            except ImportError as error:
                assert "the package. Install it: `pip install cde-hf`." in str(error), error
    """
    run_without_the_package(script, tmp_path)
