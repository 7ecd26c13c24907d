"""Real answers: the supervisor, its sandboxed process, and tiny models."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import update

from service.contract.interactive.predictions import PredictionRequest
from service.contract.states import Stage
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.interactive import predictions
from service.store.scope import EVERYTHING
from service.store.tables.workers import WorkerRow
from tests.support.factories import claim_job, make_job
from tests.support.models import save_tiny_llama
from tests.support.servers.services import wait_until
from tests.support.store.databases import on_sqlite
from tests.support.store.job_rows import finished_job, put
from tests.support.store.predictions import (
    ask,
    claim_prediction,
    failure_of,
    make_prediction,
    prediction,
)
from tests.support.store.previews import register_worker
from worker.devices.spare_device import SpareDevice
from worker.processes import spawn
from worker.processes.fork_client import ForkClient
from worker.processes.fork_protocol import PREDICTOR
from worker.processes.spawn import Launch, Process, Start
from worker.processes.stage_environment import stage_environment
from worker.supervision.interactive import prediction_request
from worker.supervision.interactive import predictions as predicting
from worker.supervision.interactive.predictions import Predictions

pytestmark = on_sqlite  # what differs between databases is in tests/store

MESSAGES = [{"role": "user", "content": "the report of the water board"}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "one")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Iterator[Start]:
    """From a fork server, as in a worker."""
    environment = stage_environment(Settings(home=tmp_path_factory.mktemp("home")), Stage.TRAIN)
    imports = ("worker.inference.text_model", PREDICTOR)
    forks = ForkClient(_of_all_tests(environment), imports=imports)
    yield lambda wanted: forks.start(replace(wanted, environment=_of_all_tests(wanted.environment)))
    forks.close()


def _of_all_tests(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != "PYTEST_CURRENT_TEST"}


@pytest.fixture
def asked_settings(settings: Settings, model_dir: Path) -> Settings:
    return settings.model_copy(
        update={"model_roots": [model_dir.parent.resolve()], "lease_seconds": 3.0}
    )


@pytest.fixture
def predictor(database: Database, asked_settings: Settings, start: Start) -> Iterator[Predictions]:
    made = Predictions(database, asked_settings, start=start)
    yield made
    made.close()


def chat(model_dir: Path, **options: Any) -> PredictionRequest:
    return PredictionRequest.model_validate(
        {
            "model": {"name_or_path": str(model_dir)},
            "input": {"kind": "chat", "messages": MESSAGES},
            "options": {"max_new_tokens": 12, "temperature": 0, **options},
        }
    )


def answered(database: Database, predictor: Predictions, request: PredictionRequest) -> Any:
    """The result of a prediction that succeeds."""
    row = prediction(database, wake(database, predictor, request))
    assert (row.state, row.failure) == ("succeeded", None)
    return row.result


def wake(database: Database, predictor: Predictions, request: PredictionRequest) -> str:
    prediction_id = ask(database, request)
    predictor.wake("worker-1", ["predict"])
    return prediction_id


def pid_of(predictor: Predictions) -> int:
    assert predictor._warm is not None
    return predictor._warm.pid


def test_the_whole_life_of_a_model(
    database: Database, predictor: Predictions, model_dir: Path
) -> None:
    """One process answers what is asked of its model, until another one is asked for."""
    (choice,) = answered(database, predictor, chat(model_dir))["choices"]
    assert choice["text"]
    assert choice["message"] == {"role": "assistant", "content": choice["text"]}
    first = pid_of(predictor)
    assert answered(database, predictor, chat(model_dir))["choices"] == [choice]

    # What cannot be answered is refused, and the model stays.
    too_long = make_prediction(
        database, model={"name_or_path": str(model_dir)}, prompt="water " * 500
    )
    predictor.wake("worker-1", ["predict"])
    assert failure_of(database, too_long)["code"] == "sequence_too_long"
    assert pid_of(predictor) == first

    # Another model takes its place.
    other = save_tiny_llama(model_dir.parent / "two", seed=1)
    assert answered(database, predictor, chat(other))["choices"] != [choice]
    assert pid_of(predictor) != first
    assert not psutil.pid_exists(first)


def test_a_model_outside_of_the_roots_is_not_found(
    database: Database, predictor: Predictions, tmp_path: Path
) -> None:
    asked = wake(database, predictor, chat(tmp_path))
    assert failure_of(database, asked)["code"] == "model_not_found"


def test_a_killed_process_is_replaced(
    database: Database, predictor: Predictions, model_dir: Path
) -> None:
    answered(database, predictor, chat(model_dir))
    os.kill(pid_of(predictor), signal.SIGKILL)
    answered(database, predictor, chat(model_dir))

    # In the midst of an answer: the next attempt gives it.
    asked = ask(database, chat(model_dir, max_new_tokens=100))
    predictor.close()
    killer = threading.Thread(target=_kill_when_started, args=(predictor,))
    killer.start()
    predictor.wake("worker-1", ["predict"])
    killer.join()
    row = prediction(database, asked)
    assert (row.state, row.crashes, row.epoch) == ("succeeded", 1, 2)


@pytest.mark.usefixtures("processes")
def test_why_a_process_ended_is_reported_about_the_model(
    database: Database, asked_settings: Settings, model_dir: Path
) -> None:
    """There is no stage, and no job whose log could be read."""

    def broken(wanted: Launch) -> Process:
        return spawn.new_interpreter(replace(wanted, command=["sh", "-c", "exit 3"]))

    mine = Predictions(database, asked_settings, start=broken)
    failure = failure_of(database, wake(database, mine, chat(model_dir)))
    assert failure["message"].startswith("The process with the model exited with status 3")
    assert "worker's log" in failure["action"]


def _kill_when_started(predictor: Predictions) -> None:
    wait_until(lambda: predictor._warm is not None, 20, "the process")
    os.kill(pid_of(predictor), signal.SIGKILL)


def cancelled_once(
    is_time: Callable[[], bool], database: Database, predictor: Predictions, asked: str
) -> None:
    """A user cancels it while `predictor` answers it, as soon as it is time."""

    def cancel() -> None:
        wait_until(is_time, 20, "the time to cancel")
        with database.write() as session:
            predictions.cancel(session, EVERYTHING, asked)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    predictor.wake("worker-1", ["predict"])
    canceller.join()
    assert prediction(database, asked).state == "cancelled"


def test_a_cancelled_one_ends_and_the_model_stays(
    database: Database, predictor: Predictions, model_dir: Path
) -> None:
    answered(database, predictor, chat(model_dir))
    first = pid_of(predictor)
    asked = ask(database, chat(model_dir, n=8, max_new_tokens=100, logprobs=20))
    cancelled_once(
        lambda: prediction(database, asked).state == "running", database, predictor, asked
    )
    answered(database, predictor, chat(model_dir))
    assert pid_of(predictor) == first


# Python cannot interrupt the comparison, which takes 2 ** 60 steps.
UNSTOPPABLE = (
    "{% set both = namespace(a=[1], b=[1]) %}{% for each in range(60) %}"
    "{% set both.a = [both.a, both.a] %}{% set both.b = [both.b, both.b] %}{% endfor %}"
    "{{ both.a == both.b }}"
)


@pytest.mark.heavy
def test_a_chat_template_that_cannot_be_stopped_costs_its_process(
    database: Database, predictor: Predictions, model_dir: Path
) -> None:
    own = save_tiny_llama(model_dir.parent / "unstoppable")
    (own / "chat_template.jinja").write_text(UNSTOPPABLE)
    asked = ask(database, chat(own))
    pids: list[int] = []

    def has_process() -> bool:
        if predictor._warm is not None:
            pids.append(pid_of(predictor))
        return bool(pids)

    cancelled_once(has_process, database, predictor, asked)
    assert not psutil.pid_exists(pids[0])
    assert answered(database, predictor, chat(model_dir))["choices"]


def test_an_idle_model_is_closed(
    database: Database,
    asked_settings: Settings,
    model_dir: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predicting, "_IDLE_SECONDS", 0.5)
    mine = Predictions(database, asked_settings, start=start)
    answered(database, mine, chat(model_dir))
    process = pid_of(mine)
    wait_until(lambda: not psutil.pid_exists(process), 10, "its end")
    assert mine._warm is None


def test_a_training_comes_first(
    database: Database, asked_settings: Settings, model_dir: Path, start: Start
) -> None:
    """A waiting one ends the idle model; a running one lets predictions wait, unless their model
    is small enough for the CPU that the operator leaves to them."""
    register_here(database)
    mine = Predictions(database, asked_settings, start=start)
    answered(database, mine, chat(model_dir))
    process = pid_of(mine)
    job = make_job(database)
    put(database, job, stage="train", queue="gpu")
    wait_until(lambda: not psutil.pid_exists(process), 5, "room for the training")

    for training in ("waits", "runs"):
        if training == "runs":
            claim_job(database, job)
        waiting = wake(database, mine, chat(model_dir))
        assert prediction(database, waiting).state == "queued"
        with database.write() as session:
            predictions.cancel(session, EVERYTHING, waiting)
    mine.close()
    settings = asked_settings.model_copy(update={"predictions_first": True})
    first = Predictions(database, settings, start=start)
    answered(database, first, chat(model_dir))
    first.close()

    # The size of a base model's folder is known like that of a job's model.
    claimed = claim_prediction(database, ask(database, chat(model_dir)))
    assert claimed is not None
    size = prediction_request.resolve(database, asked_settings, claimed).bytes
    assert size == (model_dir / "model.safetensors").stat().st_size
    for most in (size - 1, size):
        settings = asked_settings.model_copy(update={"prediction_cpu_bytes": most})
        held = SpareDevice(database, settings, ()).take(size)
        assert (held is not None) == (most == size)
        if held is not None:
            held.release()


def register_here(database: Database) -> None:
    """A live worker of this machine that trains."""
    register_worker(database, "worker-1", queue="gpu")
    with database.write() as session:
        session.execute(update(WorkerRow).values(hostname=socket.gethostname()))


def test_texts_appear_while_it_is_answered(
    database: Database, predictor: Predictions, model_dir: Path
) -> None:
    seen: list[list[str]] = []
    stop = threading.Event()

    def watch(prediction_id: str) -> None:
        while not stop.wait(0.02):
            row = prediction(database, prediction_id)
            if row.texts and row.texts not in seen:
                seen.append(row.texts)

    answered(database, predictor, chat(model_dir))
    asked = ask(database, chat(model_dir, max_new_tokens=100, logprobs=2, n=8))
    watcher = threading.Thread(target=watch, args=(asked,))
    watcher.start()
    predictor.wake("worker-1", ["predict"])
    stop.set()
    watcher.join()
    row = prediction(database, asked)
    assert row.state == "succeeded"
    assert row.result is not None
    final = row.result["choices"][0]["text"]
    assert all(final.startswith(texts[0]) for texts in seen)


def test_one_process_of_a_machine_has_a_model_on_the_cpu(
    database: Database,
    asked_settings: Settings,
    model_dir: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It also answers requests whose message another process received, until another model is asked
    for."""
    monkeypatch.setattr("worker.supervision.interactive.predictions._LOST_SECONDS", 0.5)
    mine, others = (Predictions(database, asked_settings, start=start) for _ in range(2))
    answered(database, mine, chat(model_dir))
    process = pid_of(mine)
    asked = wake(database, others, chat(model_dir))
    wait_until(lambda: prediction(database, asked).state == "succeeded", 20, "its answer")
    assert others._warm is None
    assert pid_of(mine) == process

    other = save_tiny_llama(model_dir.parent / "three", seed=2)
    asked = wake(database, others, chat(other))
    assert prediction(database, asked).state == "queued"

    def is_answered() -> bool:
        others.wake("worker-2", ["predict"])
        return prediction(database, asked).state == "succeeded"

    wait_until(is_answered, 20, "the other model's turn")
    assert not psutil.pid_exists(process)
    others.close()


ECHO = """
import json, os, sys
for line in sys.stdin:
    result = {"choices": [{"text": "a", "finish_reason": "stop"}]}
    event = {"type": "answered", "id": json.loads(line)["id"], "result": result}
    os.write(int(os.environ["FINETUNE_EVENT_FD"]), (json.dumps(event) + "\\n").encode())
"""


@pytest.mark.usefixtures("processes")
def test_clients_that_ask_one_after_the_other_share_a_loaded_model(
    database: Database, asked_settings: Settings, model_dir: Path
) -> None:
    """Two models are loaded once each, although each client asks again only when it was
    answered, while the other one waits."""
    started: list[Launch] = []

    def ask_three_times(folder: Path) -> None:
        for _ in range(3):
            asked = ask(database, chat(folder))
            is_answered = partial(_is_answered, database, asked)
            wait_until(is_answered, 20, "its answer")

    mine = Predictions(database, asked_settings, start=_echoing(started))
    names = model_dir, model_dir.parent
    clients = [threading.Thread(target=ask_three_times, args=(name,)) for name in names]
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        mine.wake("worker-1", ["predict"])
        time.sleep(0.01)
    mine.close()
    assert len(started) == 2


@pytest.mark.usefixtures("processes")
def test_a_model_that_was_removed_takes_no_turn(
    database: Database, asked_settings: Settings, model_dir: Path
) -> None:
    """The next request for the model in memory is answered, whichever process received its
    message."""
    mine = Predictions(database, asked_settings, start=_echoing([]))
    answered(database, mine, chat(model_dir))
    removed = finished_job(database, spec={"task": "chat"})
    asked = make_prediction(database, model={"job": removed})
    put(database, removed, workspace_pruned_at=db_now())
    mine.wake("worker-1", ["predict"])
    assert failure_of(database, asked)["code"] == "model_not_found"
    again = ask(database, chat(model_dir))
    wait_until(partial(_is_answered, database, again), 10, "its answer")
    mine.close()


def _echoing(started: list[Launch]) -> Start:
    """Starts a process that answers everything at once."""

    def start(wanted: Launch) -> Process:
        started.append(wanted)
        command = [sys.executable, "-I", "-S", "-c", ECHO]
        return spawn.new_interpreter(replace(wanted, command=command))

    return start


def _is_answered(database: Database, asked: str) -> bool:
    return prediction(database, asked).state == "succeeded"


LIAR = """
import json, os, sys
def say(**event):
    os.write(int(os.environ["FINETUNE_EVENT_FD"]), (json.dumps(event) + "\\n").encode())
def result(text):
    return {"choices": [{"text": text, "finish_reason": "stop"}]}
for line in sys.stdin:
    asked = json.loads(line)["id"]
    say(type="answered", id="pred-0", result=result("of another"))
    say(type="answered", id=asked, result={"choices": "none"})
    say(type="answered", id=asked, result=result("long" * 300_000))
    say(type="finished", result={})
    say(type="written", id=asked, texts=["a"] * 1000)
    say(type="answered", id=asked, result=result("right"))
"""


@pytest.mark.usefixtures("processes")
def test_an_invalid_answer_is_dropped(
    database: Database, asked_settings: Settings, model_dir: Path
) -> None:
    """And the process lets trainings go first if it may share the CPU with them."""

    nice = []

    def lying(wanted: Launch) -> Process:
        nice.append(wanted.nice)
        command = [sys.executable, "-P", "-c", LIAR]
        return spawn.new_interpreter(replace(wanted, command=command, nice=0))

    mine = Predictions(database, asked_settings, start=lying)
    assert answered(database, mine, chat(model_dir))["choices"][0]["text"] == "right"
    mine.close()
    sharing = asked_settings.model_copy(update={"prediction_cpu_bytes": 1})
    other = Predictions(database, sharing, start=lying)
    answered(database, other, chat(model_dir))
    other.close()
    assert nice == [0, 10]  # next to a training it is slower


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_memory_does_not_grow(database: Database, predictor: Predictions, model_dir: Path) -> None:
    """Over 300 answers, of the model's process and of its supervisor."""
    used = []
    for count in range(1, 301):
        options = {"temperature": 1.0, "seed": count, "n": 1 + count % 3, "logprobs": count % 4}
        answered(database, predictor, chat(model_dir, **options))
        if count % 100 == 0:
            used.append([_resident_bytes(pid_of(predictor)), _resident_bytes(os.getpid())])
    growth = [last - first for first, last in zip(used[0], used[-1], strict=True)]
    assert max(growth) < 8 * 1024**2, used


def _resident_bytes(pid: int) -> int:
    """Of the process, and of those that it has started to be confined."""
    process = psutil.Process(pid)
    inner = process.children(recursive=True) if pid != os.getpid() else []
    return sum(int(each.memory_info().rss) for each in [process, *inner])
