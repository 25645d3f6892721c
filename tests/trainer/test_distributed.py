"""Several processes against one on the same batches: the gradient of every parameter of both stages."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cde_hf.trainer import find_last_checkpoint


# The runs on two processes are shared by all tests of this file, so one worker must have them all.
pytestmark = pytest.mark.xdist_group("distributed")

BATCH_SIZE = 16  # of all processes together
MODELS = {
    "plain": {"kind": "plain", "dtype": "float64"},
    "joint": {"kind": "joint", "dtype": "float64"},
    "prefix": {"kind": "prefix", "dtype": "float64", "pooling": "context_frequency"},
}


def make_cases(plan_folder, negatives_plan_folder):
    """Runs in which the processes share a batch, by name."""
    cases = {}
    for kind, model in MODELS.items():
        for mini_batch_size in (None, 3):
            for accumulation in (1, 2):
                cases[f"{kind}-mini_batch_{mini_batch_size}-accumulation_{accumulation}"] = {
                    "model": model,
                    "mini_batch_size": mini_batch_size,
                    "gradient_accumulation_steps": accumulation,
                    "plan_folder": plan_folder,
                }
        cases[f"{kind}-hard_negatives"] = {
            "model": model,
            "mini_batch_size": 5,
            "num_negatives": 2,
            "plan_folder": negatives_plan_folder,
        }
    cases["prefix-float32"] = {
        "model": {"kind": "prefix"},
        "mini_batch_size": 3,
        "context_mini_batch_size": 2,
        "plan_folder": plan_folder,
    }
    cases["prefix-whole_context_on_each"] = {
        "model": {**MODELS["prefix"], "context_size": 5},
        "mini_batch_size": 3,
        "plan_folder": plan_folder,
    }
    cases["prefix-two_epochs"] = {
        "model": MODELS["prefix"],
        "mini_batch_size": 8,
        "max_steps": 12,
        "plan_folder": plan_folder,
    }
    return cases


FAULTS = {
    "dropped_mini_batch": "prefix-mini_batch_3-accumulation_1",
    "missing_all_reduce": "joint-mini_batch_3-accumulation_1",
    "stuck_epoch": "prefix-two_epochs",
}


def make_unshared_cases(plan_folder):
    """Runs in which each process has batches of its own: two processes, or one that accumulates two batches."""
    return {
        f"unshared-{kind}-mini_batch_{mini_batch_size}": {
            "model": model,
            "mini_batch_size": mini_batch_size,
            "max_steps": 2,
            "plan_folder": plan_folder,
        }
        for kind, model in MODELS.items()
        for mini_batch_size in (None, 3)
    }


@pytest.fixture(scope="module")
def cases(plan_folder, negatives_plan_folder):
    return make_cases(plan_folder, negatives_plan_folder)


def results_of(folder, name):
    return load_file(folder / f"{name}.safetensors"), json.loads((folder / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def on_one(tiny, cases, plan_folder, tmp_path_factory):
    """Gradients and weights of the runs on one process."""
    results = {}

    def compute(name):
        if name not in results:
            folder = tmp_path_factory.mktemp("one")
            if name.startswith("unshared"):
                case = make_unshared_cases(plan_folder)[name]
                options = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, **case}
            else:
                options = {"per_device_train_batch_size": BATCH_SIZE, **cases[name]}
            trainer, recorder, _ = tiny.run(folder, **options)
            tensors = {f"{step}.{key}": v for step, part in enumerate(recorder.gradients) for key, v in part.items()}
            results[name] = tensors | {f"weights.{key}": v for key, v in trainer.model.state_dict().items()}
        return results[name]

    return compute


def shared(cases, num_processes):
    share = {"per_device_train_batch_size": BATCH_SIZE // num_processes, "gather_across_devices": True}
    return [{"name": name, **share, **case} for name, case in cases.items()]


@pytest.fixture(scope="module")
def on_two(launch, cases, plan_folder):
    """Folder of the results of two processes."""
    share = {"per_device_train_batch_size": BATCH_SIZE // 2, "gather_across_devices": True}
    with_faults = [{"name": fault, "fault_name": fault, **share, **cases[name]} for fault, name in FAULTS.items()]
    unshared = [
        {"name": name, "per_device_train_batch_size": 8, **case}
        for name, case in make_unshared_cases(plan_folder).items()
    ]
    return launch([*shared(cases, 2), *unshared, *with_faults], num_processes=2)


def largest_errors(found, expected):
    """Largest error of each gradient and weight, as a part of its largest entry."""
    assert found.keys() == expected.keys()
    return {
        name: float((found[name] - tensor).abs().max() / tensor.abs().max())
        for name, tensor in expected.items()
        if tensor.abs().max() > 0
    }


NAMES = [*make_cases("", ""), *make_unshared_cases("")]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_make_the_gradients_of_one(on_one, on_two, name):
    found, facts = results_of(on_two, name)
    expected = on_one(name)
    assert facts["num_processes"] == 2
    errors = largest_errors(found, expected)
    for stage in ("first_stage_model", "second_stage_model") if "plain" not in name else ("layers",):
        assert any(stage in key and key.startswith("0.") for key in errors)
    tolerance = 5e-5 if "float32" in name else 1e-9
    worst = max(errors, key=errors.get)
    assert errors[worst] <= tolerance, (worst, errors[worst])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_sent_once_in_a_step(on_two, name):
    _, facts = results_of(on_two, name)
    assert facts["num_sent"] == [facts["num_parameters"]] * len(facts["num_sent"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(on_one, on_two, fault):
    found, _ = results_of(on_two, fault)
    assert max(largest_errors(found, on_one(FAULTS[fault])).values()) > 1e-3


def test_sharded_parameters_have_the_gradients_of_whole_ones(tmp_path):
    worker = Path(__file__).with_name("fsdp_worker.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(worker)]
    result = subprocess.run([*command, str(tmp_path / "out.json")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-5000:]
    for facts in json.loads((tmp_path / "out.json").read_text()).values():
        assert max(facts["errors"].values()) <= 1e-9
        assert facts["num_zero"] <= 1  # the null embedding of a full context
        assert facts["num_reduced"] == facts["num_groups"] == 5


@pytest.mark.slow
def test_four_processes_make_the_gradients_of_one(launch, cases, on_one):
    folder = launch(shared(cases, 4), num_processes=4)
    for name in cases:
        found, facts = results_of(folder, name)
        assert facts["num_processes"] == 4
        tolerance = 5e-5 if "float32" in name else 1e-9
        assert max(largest_errors(found, on_one(name)).values()) <= tolerance, name


@pytest.mark.slow
def test_two_nodes_make_the_gradients_of_one(cases, on_one, tmp_path):
    name = "prefix-mini_batch_3-accumulation_2"
    (tmp_path / "cases.json").write_text(json.dumps(shared({name: cases[name]}, 2)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1"),
                *("--nnodes=2", f"--node_rank={rank}", "--master_addr=127.0.0.1", f"--master_port={port}"),
                *(str(Path(__file__).with_name("tiny_runs.py")), str(tmp_path / "cases.json"), str(tmp_path)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    found, facts = results_of(tmp_path, name)
    assert facts["num_processes"] == 2
    assert max(largest_errors(found, on_one(name)).values()) <= 1e-9


def test_sigterm_on_one_process_stops_both_at_one_step_and_resumes_bit_identical(launch, plan_folder):
    common = {
        "model": {"kind": "prefix", "dropout": 0.1, "sequence_dropout_prob": 0.1},
        "max_steps": 10,
        "per_device_train_batch_size": 8,
        "gather_across_devices": True,
        "gradient_accumulation_steps": 2,
        "mini_batch_size": 3,
        "plan_folder": plan_folder,
        "save_steps": 100,
    }
    cut = {"name": "cut", **common, "terminate": [1, 5], "save_strategy": "steps"}
    folder = launch([{"name": "whole", **common}, cut], num_processes=2)
    expected, facts = results_of(folder, "whole")
    assert facts["ends"] == [[10, False], [10, False]]
    assert results_of(folder, "cut")[1]["ends"] == [[6, True], [6, True]]
    checkpoint = find_last_checkpoint(folder / "cut")
    assert checkpoint.name == "checkpoint-6"
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}

    again = launch([{"name": "resumed", **common, "resume": str(checkpoint)}], num_processes=2)
    found, facts = results_of(again, "resumed")
    assert facts["ends"] == [[10, False], [10, False]]
    assert {name.split(".")[0] for name in found} == {"0", "1", "2", "3", "weights"}
    for name, tensor in found.items():
        part, rest = name.split(".", 1)
        expected_name = name if part == "weights" else f"{int(part) + 6}.{rest}"
        assert torch.equal(tensor, expected[expected_name]), name


REFERENCES = Path(__file__).with_name("reference_trajectories.json")
TRAJECTORY = {"max_steps": 6, "batch_grouping": "random", "model": {"kind": "prefix"}}


def trajectory(log):
    return [[entry["loss"], entry["grad_norm"]] for entry in log if "loss" in entry]


@pytest.fixture(scope="module")
def trajectories(tiny, launch, plan_folder, tmp_path_factory):
    """Loss and gradient norm of the first steps of runs that should be the same, by class of equivalence."""
    common = {**TRAJECTORY, "plan_folder": plan_folder}

    def alone(**options):
        return trajectory(tiny.run(tmp_path_factory.mktemp("run"), **common, **options)[0].state.log_history)

    two = {"per_device_train_batch_size": 8}
    folder = launch(
        [
            {"name": "shared", "gather_across_devices": True, **two, **common},
            {"name": "unshared", **two, **common},
        ],
        num_processes=2,
    )
    return {
        "one batch": {
            "plain": alone(per_device_train_batch_size=16),
            "cached": alone(per_device_train_batch_size=16, mini_batch_size=3),
            "two processes": trajectory(results_of(folder, "shared")[1]["log"]),
        },
        "two batches": {
            "accumulated": alone(per_device_train_batch_size=8, gradient_accumulation_steps=2),
            "two processes": trajectory(results_of(folder, "unshared")[1]["log"]),
        },
    }


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("one batch", "plain"),
        ("one batch", "cached"),
        ("one batch", "two processes"),
        ("two batches", "accumulated"),
        ("two batches", "two processes"),
    ],
)
def test_training_takes_the_recorded_course(trajectories, kind, way):
    reference = torch.tensor(json.loads(REFERENCES.read_text())[kind])
    residual = torch.tensor(trajectories[kind][way]) - reference
    assert residual.abs().max() < 2e-3
    assert residual.mean(dim=0).abs().max() < 5e-4  # a drift to one side
