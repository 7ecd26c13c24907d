"""A fork server with the real libraries: a forked stage has the same state and results."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from service.contract.stage.events import Finished, Metric, Notice
from service.contract.states import Stage
from service.settings import Settings
from tests.processes.support import STATE, begin, command, finish, is_forked, state_of
from tests.support.models import minilm_dir
from tests.tasks.stages import StagedJob, write_rows
from worker.processes import fork_client, spawn
from worker.processes.child import Child
from worker.processes.fork_client import STAGE_MODULES, ForkClient
from worker.processes.spawn import Start
from worker.processes.stage_command import stage_command
from worker.processes.stage_environment import stage_environment

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
    pytest.mark.timeout(600),
    pytest.mark.long,
    pytest.mark.heavy,  # changes with the versions of libraries
]


def environment(**more: str) -> dict[str, str]:
    """Of a stage, with two threads."""
    base = stage_environment(Settings(home=Path("/nowhere")), Stage.PREPARE)
    base.pop("PYTEST_CURRENT_TEST", None)  # pytest changes it during a test
    return {**base, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2", **more}


@pytest.fixture(scope="module")
def forks(processes: None) -> Iterator[ForkClient]:
    forks = ForkClient(environment(), modules=(STATE, *STAGE_MODULES))
    forks.ensure_server()
    yield forks
    forks.close()


RANDOM = {
    "transformers.utils.hub.SESSION_ID",
    # Left by a loop over a set.
    "transformers.models.auto.tokenization_auto.model_type",
    # A path relative to the working folder, for tools that write documentation.
    "transformers.utils.auto_docstring.PATH_TO_TRANSFORMERS",
}


@dataclass(frozen=True)
class Trained:
    """A process that has recorded its state and has then trained."""

    state: dict[str, Any]
    plan: str
    losses: list[float]
    weights: str


Twice = Callable[[int], list[Trained]]
WORDS = ["fox", "hen", "owl", "cat", "dog", "elk", "bee", "ant", "cow", "ram"]


def body_of(folder: Path, num_processes: int) -> dict[str, Any]:
    rows = [{"text": f"{word} is what the {word} says to the other {word}s"} for word in WORDS]
    return {
        "metadata": {"stub.prepare": "heavy"},
        "task": {"type": "masked-lm", "line_by_line": True},
        "model": {
            "config": {
                "model_type": "bert",
                "config_overrides": {"hidden_size": 48, "num_hidden_layers": 1},
            },
            "tokenizer_name": str(minilm_dir()),
        },
        "dataset": {"source": "path", "train": write_rows(folder / "rows.jsonl", rows)},
        "training": {"max_steps": 5, "logging_steps": 1, "save_strategy": "no", "seed": 7},
        "resources": {"gpus": 0, "num_processes": num_processes},
    }


def train(job: StagedJob, start: Start, forks: ForkClient, late: Mapping[str, str]) -> Trained:
    """With two threads in each process. The launcher of several is forked, and forks them; it does
    not record its state."""
    request = job.request(Stage.TRAIN, attempt=1)
    path, log = request.attempt_dir / "request.json", job.home / "log"
    path.write_text(request.model_dump_json())
    is_one = request.spec.resources.processes == 1
    words = command(path, STATE) if is_one else stage_command(request, path)
    variables = environment(**{name: late[name] for name in late if name != "HF_TOKEN"})
    secrets = {name: late[name] for name in late if name == "HF_TOKEN"}
    child = Child(words, variables, request.attempt_dir, log, start=start, secrets=secrets)
    assert start == spawn.new_interpreter or is_forked(child, forks)
    events = finish(child)[1]
    assert isinstance(events[-1], Finished), log.read_text()
    [plan] = [e.message for e in events if isinstance(e, Notice) and "Training on" in e.message]
    losses = [e.values["loss"] for e in events if isinstance(e, Metric) and e.kind == "train"]
    state = state_of(request.attempt_dir) if is_one else {}
    assert events[-1].result is not None
    return Trained(state, plan, losses, events[-1].result["weights_sha256"])


@pytest.fixture(scope="module")
def twice(forks: ForkClient, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """In a new interpreter and in a forked process; by the number of processes."""

    @cache
    def ended(num_processes: int) -> list[Trained]:
        folder = tmp_path_factory.mktemp("twice")
        # Set after the server's start.
        late = {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_secret", "HF_HOME": str(folder / "own")}
        job = StagedJob(folder, body_of(folder, num_processes))
        job.prepare()
        return [train(job, start, forks, late) for start in (spawn.new_interpreter, forks.start)]

    return ended


def test_knows_variables_that_libraries_read_at_import(
    twice: Twice, forks: ForkClient, tmp_path: Path
) -> None:
    """Constants, pools of threads, the seed: all plain values in all their modules."""
    cold, forked = (each.state for each in twice(1))
    child = begin(tmp_path, "heavy", forks.start, STATE, **environment(HF_HUB_OFFLINE="1"))
    assert finish(child)[0] == 0
    other = state_of(tmp_path)
    assert all(one != two for one, two in zip(forked["drawn"], other["drawn"], strict=True))
    assert cold["constants"]["huggingface_hub.constants.HF_HUB_OFFLINE"] == "True"
    assert "own/modules" in cold["constants"]["datasets.config.HF_MODULES_CACHE"]
    assert len(cold["constants"]) > 800
    assert forked["threads"] == cold["threads"]
    assert forked["threads"]["torch"][0] == 2
    shared = cold["constants"].keys() & forked["constants"].keys()
    differing = {
        name: (cold["constants"][name], forked["constants"][name])
        for name in shared
        if cold["constants"][name] != forked["constants"][name] and name not in RANDOM
    }
    assert differing == {}
    assert cold["constants"].keys() == shared
    assert not any("hf_secret" in value for value in forked["constants"].values())


@pytest.mark.parametrize(
    ("num_processes", "where"),
    [(1, "the CPU with 2 threads in"), (2, "the CPU with 2 threads in 2 processes in")],
)
def test_trains_to_the_same_weights(twice: Twice, num_processes: int, where: str) -> None:
    cold, forked = twice(num_processes)
    assert where in cold.plan
    assert where in forked.plan
    assert len(cold.losses) == 5
    assert (cold.losses, cold.weights) == (forked.losses, forked.weights)


@pytest.mark.usefixtures("processes")
def test_with_a_gpu_no_import_starts_cuda() -> None:
    """No GPU is needed to see that bitsandbytes, whose import starts CUDA, is not reached."""
    program = f"""
import importlib, json, sys
for name in {fork_client.IMPORTS_WITH_GPU!r}:
    importlib.import_module(name)
import torch
from worker.processes import linux
print(json.dumps([linux.threads(), torch.cuda.is_initialized(), sorted(sys.modules)]))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, **fork_client.FORKABLE, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    threads, has_cuda, modules = json.loads(done.stdout.splitlines()[-1])
    assert len(threads) == 1
    assert not has_cuda
    assert {"bitsandbytes", "peft"} & set(modules) == set()
