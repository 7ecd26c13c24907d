"""What `make demo` prints; only `make demo` itself runs the complete demo."""

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from service.cli.stack.lock import StackAddress
from service.cli.terminal.client import Client
from service.store.database import Database
from service.store.tables.jobs import MetricRow
from tests.cli.job_rows import end
from tests.cli.jobs.job_pages import recorded, text_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    found = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def printed(renderable: object) -> str:
    console = recorded(100)
    console.print(renderable)
    return text_of(console)


class TestScores:
    def test_em_and_f1_before_and_after(self, demo: ModuleType) -> None:
        before = {"eval_exact_match": 0.948, "eval_f1": 5.39, "eval_loss": 6.0}
        after = {"eval_exact_match": 44.55, "eval_f1": 56.61, "train_loss": 1.5}
        rows = [line.split() for line in printed(demo.scores(after, before)).splitlines()]
        assert ["│", "exact", "match", "(EM)", "│", "0.9", "│", "44.5", "│"] in rows
        assert ["│", "F1", "│", "5.4", "│", "56.6", "│"] in rows


class TestSamplePanel:
    def test_question_passage_expected_and_predicted(self, demo: ModuleType) -> None:
        shown = printed(
            demo.sample_panel(
                {
                    "question": "Who [was] it?",
                    "context": "It was Watt.",
                    "answers": ["Watt", "James Watt"],
                    "prediction": "",
                }
            )
        )
        for text in ("Who [was] it?", "… It was Watt. …", "Watt | James Watt", "(no answer)"):
            assert text in shown
        assert "✓" not in shown

    @pytest.mark.parametrize(
        ("answers", "prediction"), [(["James Watt", "Watt"], "Watt"), ([], "")]
    )
    def test_a_right_answer_is_marked(
        self, demo: ModuleType, answers: list[str], prediction: str
    ) -> None:
        sample = {"question": "Who?", "context": "", "answers": answers, "prediction": prediction}
        [line] = [line for line in printed(demo.sample_panel(sample)).splitlines() if "✓" in line]
        assert line.split()[1] == "predicted"


class TestHowToUse:
    def test_the_address_and_the_exports(self, demo: ModuleType) -> None:
        address = StackAddress(
            pid=4711,
            url="http://127.0.0.1:81",
            mlflow_url="http://127.0.0.1:82",
            home=demo.HOME,
        )
        shown = demo.how_to_use(address)
        lines = [line.strip() for line in shown.splitlines()]
        assert ". .venv/bin/activate" in lines
        assert f"export FINETUNE_HOME={demo.HOME}" in lines
        assert "export FINETUNE_URL=http://127.0.0.1:81" in lines
        assert "MLflow at http://127.0.0.1:82" in shown
        assert lines[-1] == "Stop the service with: kill 4711"


class TestEnvironment:
    def test_nothing_of_the_users_service_gets_in(
        self, demo: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATABASE_URL", "postgresql://production/jobs")
        environment = demo.environment()
        assert {name for name in environment if name.startswith("FINETUNE_")} == {
            "FINETUNE_HOME",
            "FINETUNE_MODEL_ROOTS",
        }


class TestCancelEarlier:
    def test_only_the_jobs_of_a_demo_that_was_stopped(
        self, demo: ModuleType, http: httpx.Client, store: Database, job_id: str
    ) -> None:
        metadata = {"example": "question-answering"}
        spec = http.get(f"/v1/jobs/{job_id}").json()["spec"] | {"metadata": metadata}
        left, ended = (http.post("/v1/jobs", json=spec).json()["id"] for _ in range(2))
        end(store, ended, "succeeded")
        with Client(str(http.base_url)) as client:
            demo.cancel_earlier(client, metadata)
        states = {job["id"]: job["state"] for job in http.get("/v1/jobs").json()["data"]}
        assert states == {job_id: "queued", left: "cancelled", ended: "succeeded"}


TRAINING = {"num_train_epochs": 3, "eval_strategy": "epoch", "save_strategy": "epoch"}


class TestFitting:
    @pytest.mark.parametrize(
        ("rate", "epochs", "says"),
        [
            (33.0, None, "33 examples/s: all 3 epochs take about 2:29."),
            (20.4, 1.8, "trains 1.8 of 3 epochs: about 2:25. `make demo FULL=1` trains all: "),
            (0.1, 0.1, "0.1 of 3 epochs: about 27:20. `make demo FULL=1` trains all: about 13:40"),
        ],
    )
    def test_it_trains_for_two_and_a_half_minutes_at_most(
        self,
        demo: ModuleType,
        rate: float,
        epochs: float | None,
        says: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        changed = demo.fitting(TRAINING, 1640, rate)
        assert changed.get("num_train_epochs") == epochs
        assert bool(changed) == (changed.get("eval_strategy") == "no")
        assert says in " ".join(capsys.readouterr().out.split())

    def test_the_trial_is_the_same_training_without_its_evaluations(self, demo: ModuleType) -> None:
        dataset = {"source": "upload", "train": "a", "validation": "b"}
        training: dict[str, Any] = {**TRAINING, "seed": 7}
        spec: dict[str, Any] = {"name": "demo", "dataset": dataset, "training": training}
        trial = demo.trial_of(spec)
        assert trial["name"] == "demo-trial"
        assert trial["dataset"] == {"source": "upload", "train": "a"}
        assert trial["training"] == training | {
            "max_steps": demo.TRIAL_STEPS,
            "logging_steps": 1,
            "eval_strategy": "no",
            "save_strategy": "no",
        }
        assert dataset["validation"] == "b"

    def test_the_first_two_steps_do_not_count(
        self, demo: ModuleType, http: httpx.Client, store: Database, job_id: str
    ) -> None:
        speeds = [2.0, 9.0, 20.0, 23.0, 21.0, None]
        with store.write() as session:
            for step, speed in enumerate(speeds, 1):
                values = {"loss": 5.0} | ({} if speed is None else {"examples_per_second": speed})
                row = MetricRow(job_id=job_id, seq=step, kind="train", step=step, values=values)
                row.at = NOW
                session.add(row)
        with Client(str(http.base_url)) as client:
            assert demo.speed_of(client, {"id": job_id}) == 21.0


class TestInterrupted:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_the_stack_is_stopped_all_the_same(
        self, demo: ModuleType, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        stopped = []

        @contextmanager
        def stack(*, keep: bool) -> Iterator[None]:
            try:
                os.kill(os.getpid(), number)
                yield time.sleep(10)
            finally:
                stopped.append(keep)

        before = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(demo, "stack", stack)
        monkeypatch.setattr(sys, "argv", ["demo.py"])
        try:
            assert demo.main() == 130
        finally:
            signal.signal(signal.SIGTERM, before)
        assert stopped == [False]
