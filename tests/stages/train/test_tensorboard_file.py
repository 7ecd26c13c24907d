"""TensorBoard's event file: `tracking.tensorboard`."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c
from transformers.integrations.integration_utils import rewrite_logs

from service.contract.spec.spec import JobSpec
from service.contract.stage.events import ArtifactWritten
from tests.training.support.jobs import Job, Killed, Recorder, at_checkpoint, rows, run
from worker.stages.train import tensorboard_file

NAME = "tensorboard/events.out.tfevents.job-1"
OPTIONS: dict[str, Any] = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
_TIMES = ("runtime", "per_second")

Scalars = dict[tuple[str, int], float]


def records(file: Path) -> Iterator[bytes]:
    """TFRecord: length, its checksum, content, its checksum."""
    content, at = file.read_bytes(), 0
    while at < len(content):
        (length,), start = struct.unpack_from("<Q", content, at), at + 12
        end = start + length
        for part, checksum in ((content[at : at + 8], at + 8), (content[start:end], end)):
            assert struct.unpack_from("<I", content, checksum) == (masked_crc32c(part),)
        yield content[start:end]
        at = end + 4


def events(file: Path) -> list[Any]:
    return [Event.FromString(record) for record in records(file)]


def scalars(file: Path) -> Scalars:
    first, *others = events(file)
    assert (first.file_version, first.step) == ("brain.Event:2", 0)
    return {(v.tag, event.step): v.simple_value for event in others for v in event.summary.value}


def by_trainer(history: list[dict[str, float]]) -> dict[tuple[str, int], Any]:
    """What transformers' callback would have written of each entry: all but the step."""
    return {
        (tag, int(entry["step"])): pytest.approx(value, rel=1e-6)
        for entry in history
        for tag, value in rewrite_logs({k: v for k, v in entry.items() if k != "step"}).items()
    }


@pytest.fixture
def with_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Job.spec

    def spec(job: Job) -> JobSpec:
        return JobSpec.model_validate(
            {**plain(job).model_dump(mode="json"), "tracking": {"tensorboard": True}}
        )

    monkeypatch.setattr(Job, "spec", spec)


def attempt(job: Job, number: int = 1) -> Path:
    return job.workspace / "attempts" / str(number)


@pytest.mark.usefixtures("with_tensorboard")
class TestOfATraining:
    def test_it_holds_the_log_and_the_test_scores(self, make_job: Callable[..., Job]) -> None:
        job = make_job(**OPTIONS, validation=rows(6, seed=5), test=rows(4, seed=6))
        result, recorder = run(job.request())
        artifacts = {event.name: event for event in recorder.of(ArtifactWritten)}
        file = attempt(job) / NAME
        assert artifacts[NAME].sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        found = scalars(file)
        state = json.loads((attempt(job) / "results" / "trainer_state.json").read_text())
        tested = {k: v for k, v in result.metrics.items() if k.startswith("test_")}
        history = state["log_history"]
        history.append({**tested, "epoch": result.epochs, "step": 4})
        assert found == by_trainer(history)
        losses = {step: value for (tag, step), value in found.items() if tag == "train/loss"}
        assert losses == pytest.approx(recorder.train_values("loss"))
        assert {step for tag, step in found if tag == "eval/loss"} == {0, 2, 4}
        assert found["test/loss", 4] == pytest.approx(result.metrics["test_loss"])
        times = [event.wall_time for event in events(file)]
        assert times == sorted(times)
        assert times[-1] > times[0] > 1.7e9

    def test_of_a_resumed_training_it_has_all_steps(self, make_job: Callable[..., Job]) -> None:
        job = make_job(max_steps=4, save_steps=2)
        with pytest.raises(Killed):
            run(job.request(1), Recorder(kill_after=at_checkpoint(2)))
        assert not (attempt(job) / NAME).exists()
        run(job.request(2, attempt(job) / "checkpoints" / "2"))
        whole = make_job(max_steps=4, save_steps=2)
        run(whole.request())
        resumed, undisturbed = scalars(attempt(job, 2) / NAME), scalars(attempt(whole) / NAME)
        assert without_times(resumed) == without_times(undisturbed)
        assert {step for tag, step in resumed if tag == "train/loss"} == {1, 2, 3, 4}


def without_times(found: Scalars) -> Scalars:
    return {key: value for key, value in found.items() if not key[0].endswith(_TIMES)}


def test_nothing_is_written_unasked(make_job: Callable[..., Job]) -> None:
    job = make_job(max_steps=1)
    _, recorder = run(job.request())
    assert not (attempt(job) / "tensorboard").exists()
    assert NAME not in {event.name for event in recorder.of(ArtifactWritten)}


class TestWrite:
    def test_the_same_history_makes_the_same_bytes(self, tmp_path: Path) -> None:
        history = [
            {"loss": 0.5, "epoch": 0.1, "step": 1, "wall_time": 1.8e9},
            {"loss": float("nan"), "epoch": 0.2, "step": 2, "wall_time": 1.8e9 + 5},
        ]
        for name in ("a", "b"):
            tensorboard_file.write(tmp_path / name, history)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert [event.wall_time for event in events(tmp_path / "a")] == [1.8e9, 1.8e9, 1.8e9 + 5]
