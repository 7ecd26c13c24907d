"""A fork server with the real libraries: a forked stage has the same state and results."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.contract.events import Finished, Metric, Notice, StageEvent
from service.contract.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from tests.processes.support import STATE, begin, finish, is_forked, state_of
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
]


def environment(**more: str) -> dict[str, str]:
    """Of a stage, with two threads."""
    base = stage_environment(Settings(home=Path("/nowhere")), Stage.PREPARE)
    base.pop("PYTEST_CURRENT_TEST", None)  # pytest changes it during a test
    return {**base, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2", **more}


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkClient]:
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


class TestKnows:
    def test_variables_that_libraries_read_at_import(
        self, forks: ForkClient, tmp_path: Path
    ) -> None:
        """Constants, pools of threads, the seed: all plain values in all their modules."""
        # Set after the server's start.
        late = {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_secret", "HF_HOME": str(tmp_path / "own")}
        states = []
        for start in (spawn.new_interpreter, forks.start, forks.start):
            child = begin(tmp_path, "heavy", start, STATE, **environment(**late))
            assert start == spawn.new_interpreter or is_forked(child, forks)
            assert finish(child)[0] == 0
            states.append(state_of(tmp_path))
        cold, forked, other = states
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
    ("processes", "where"),
    [
        (1, "the CPU with 2 threads in"),
        pytest.param(2, "the CPU with 2 threads in 2 processes in", marks=pytest.mark.heavy),
    ],
)
def test_trains_to_the_same_weights(
    forks: ForkClient, tmp_path: Path, processes: int, where: str
) -> None:
    """With two threads in each process. The launcher of several is forked, and forks them."""
    rows = [{"text": f"{word} is what the {word} says to the other {word}s"} for word in WORDS]
    body = {
        "task": {"type": "masked-lm", "line_by_line": True},
        "model": {
            "config": {
                "model_type": "bert",
                "config_overrides": {"hidden_size": 48, "num_hidden_layers": 1},
            },
            "tokenizer_name": str(minilm_dir()),
        },
        "dataset": {"source": "path", "train": write_rows(tmp_path / "rows.jsonl", rows)},
        "training": {"max_steps": 5, "logging_steps": 1, "save_strategy": "no", "seed": 7},
        "resources": {"gpus": 0, "num_processes": processes},
    }
    prepared = StagedJob(tmp_path, body).prepare()
    ended = []
    for start in (spawn.new_interpreter, forks.start):
        job = StagedJob(tmp_path, body)
        job.prepared = prepared
        events = train(job.request(Stage.TRAIN, attempt=1), start, tmp_path / "log")
        [plan] = [e.message for e in events if isinstance(e, Notice) and "Training on" in e.message]
        assert where in plan
        assert isinstance(events[-1], Finished), (tmp_path / "log").read_text()
        losses = [e.values["loss"] for e in events if isinstance(e, Metric) and e.kind == "train"]
        ended.append((losses, events[-1].result["weights_sha256"]))
    assert len(ended[0][0]) == 5
    assert ended[0] == ended[1]


WORDS = ["fox", "hen", "owl", "cat", "dog", "elk", "bee", "ant", "cow", "ram"]


def train(request: StageRequest, start: Start, log: Path) -> list[StageEvent]:
    path = request.attempt_dir / "request.json"
    path.write_text(request.model_dump_json())
    command = stage_command(request, path)
    offline = environment(HF_HUB_OFFLINE="1")
    return finish(Child(command, offline, request.attempt_dir, log, start=start))[1]


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
