"""
The paper's model at full size: both stages of a real encoder, trained for eight steps, saved, loaded and published.

It needs an encoder such as nomic-embed-text-v1.5 as a sentence-transformers folder, and 7 GB of memory:

    FULL_SIZE_ENCODER=nomic-embed-text-v1.5 python -m pytest -s -m slow tests/test_full_size.py

The pairs are docstrings, or come from the file `FULL_SIZE_PAIRS`. `-s` shows time, memory and losses.
"""

import json
import os
import subprocess
import sys
from statistics import mean

import pytest

from cde_hf.cli import main


ENCODER = os.environ.get("FULL_SIZE_ENCODER")
PAIRS = os.environ.get("FULL_SIZE_PAIRS", "docstrings")
NUM_PAIRS, BATCH_SIZE, NUM_EPOCHS = 32, 16, 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ENCODER is None, reason="the variable FULL_SIZE_ENCODER names no folder of an encoder"),
]

# In a process of its own, so that its peak memory is the training's.
TRAINING = f"""
import json, resource, statistics, sys, time
from transformers import AutoTokenizer, TrainerCallback
from cde_hf import CDEModel, ContextualContrastiveTrainer, ContextualTrainingArguments
from cde_hf import docstring_split, load_pairs, prepare_batch_plan

encoder, pairs, attention = sys.argv[1:]

class Clock(TrainerCallback):
    seconds = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.start = time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds.append(time.process_time() - self.start)

pairs = docstring_split()[0] if pairs == "docstrings" else load_pairs(pairs)
pairs = pairs.shuffle(seed=0).select(range({NUM_PAIRS}))
model = CDEModel.from_biencoder(encoder, context_attention=attention, context_size=16, pooling="mean")
args = ContextualTrainingArguments(
    output_dir="cde-small-v1",
    per_device_train_batch_size={BATCH_SIZE},
    mini_batch_size=8,
    max_length=64,
    num_train_epochs={NUM_EPOCHS},
    warmup_steps=0,
    learning_rate_mapping={{r"stage_model\\.(?!backbone)": 5e-4}},
    disable_dropout=True,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
plan = prepare_batch_plan(pairs, "plan", cluster_size={BATCH_SIZE})
tokenizer = AutoTokenizer.from_pretrained(encoder)
trainer = ContextualContrastiveTrainer(model, args, pairs, plan, tokenizer, callbacks=[Clock()])
trainer.train()
shown = {{
    "parameters": model.num_parameters(),
    "seconds of a step": round(statistics.median(Clock.seconds), 1),
    "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
}}
trainer.save_model()
trainer.save_state()
print(json.dumps(shown))
"""

LOADING = """
import sys
sys.modules["cde_hf"] = None
import numpy as np
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

corpus = ["The cat sleeps on the sofa.", "A dog barks at the moon."]
model = SentenceTransformer("cde-small-v1", trust_remote_code=True, device="cpu")
without = model.encode_query(["Which animal barks?"])
model[0].set_context(corpus)
vectors = model.encode_query(["Which animal barks?"])
assert np.abs(vectors - without).max() > 1e-3
assert model.similarity(vectors, model.encode_document(corpus)).argmax() == 1
del model
model = AutoModel.from_pretrained("cde-small-v1", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("cde-small-v1")
documents = tokenizer(["search_document: " + text for text in corpus], padding=True, return_tensors="pt")
query = tokenizer("search_query: Which animal barks?", return_tensors="pt")
context = model.encode_context(documents["input_ids"], documents["attention_mask"])
given = model.encode_texts(query["input_ids"], context=context).numpy()
np.testing.assert_allclose(given / np.linalg.norm(given), vectors / np.linalg.norm(vectors), atol=1e-5)
"""


def run(script, *arguments, folder):
    command = [sys.executable, "-c", script, *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("attention", ["prefix", "joint"])
def test_both_stages_train_and_the_folder_is_complete(tmp_path, attention):
    pairs = PAIRS if PAIRS == "docstrings" else os.path.abspath(PAIRS)
    output = run(TRAINING, os.path.abspath(ENCODER), pairs, attention, folder=tmp_path)
    shown = json.loads(output.splitlines()[-1])
    state = json.loads((tmp_path / "cde-small-v1" / "trainer_state.json").read_text())
    log = [row for row in state["log_history"] if "loss" in row]
    losses = [row["loss"] for row in log]
    sys.stdout.write(f"\n{attention}: {json.dumps({**shown, 'losses': losses})}\n")
    num_batches = NUM_PAIRS // BATCH_SIZE  # of an epoch, which has the same pairs as every other
    assert len(losses) == NUM_EPOCHS * num_batches
    assert mean(losses[-num_batches:]) < 0.7 * mean(losses[:num_batches])
    # The path from the first stage starts at zero, so its first gradients are zero.
    assert all(row[f"grad_norm_{stage}_stage"] > 0 for row in log[2:] for stage in ("first", "second"))
    run(LOADING, folder=tmp_path)
    main(["push", str(tmp_path / "cde-small-v1"), "me/cde-small-v1", "--dry-run", str(tmp_path / "upload")])
    published = {path.name for path in (tmp_path / "upload").iterdir()}
    assert {"model.safetensors", "modeling_cde.py", "modules.json", "README.md", "tokenizer.json"} <= published
    assert not published & {"trainer_state.json", "training_args.json", "plan"}
