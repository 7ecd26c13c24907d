"""Interrupted trainings of every task reach the weights and losses of an undisturbed run.

`python -m chaos.attacks.trainings.exact_resume [--seed N] [--only CASE …]` prints a row for each
case. The real supervisor runs the real stages; a pause and a worker's shutdown are requested as in
service.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeGuard

import psutil
import structlog
import yaml

from chaos.rows import Row, Scale, timed
from chaos.stack.processes import attempt_of
from service.contract.spec.spec import JobSpec
from service.contract.stage import prepared_data
from service.contract.stage.events import Metric, PhaseChanged, StageEvent
from service.contract.states import JobState, Phase, Stage
from service.settings import Settings
from service.store import schema
from service.store.database import Database, db_now
from service.store.jobs import claims, endings, state
from service.store.jobs.claims import Claim
from service.store.tables.jobs import JobRow
from tests.support.models import (
    save_tiny_bert,
    save_tiny_gpt2,
    save_tiny_llama,
    save_tiny_t5,
    save_tiny_xlnet,
)
from worker.lifecycle.shutdown import Shutdown
from worker.processes import fork_client, spawn
from worker.storage import atomic_dir
from worker.supervision.event_recorder import EventRecorder
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
STEPS: Final = 60
INTERRUPTIONS: Final = ("pause", "shutdown", "SIGKILL", "SIGKILL in a save")
IN_REFERENCE: Final = "SIGKILL in the reference"
"""Before the first step, while the model that preferences are relative to is asked."""
_TRAINING: Final[dict[str, Any]] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 7,
    "save_total_limit": 2,
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "metric_for_best_model": None,
    "bf16": False,
}
_BY_LENGTH: Final = {"train_sampling_strategy": "group_by_length"}
_BF16: Final = {"bf16": True}
_KTO: Final = {"loss_type": "kto"}
_LORA: Final = {"peft": {"method": "lora", "r": 4, "lora_dropout": 0.1}}
_TWO: Final = {"resources": {"gpus": 0, "num_processes": 2}}
# Answers are hundreds of tokens. One at a time the reference takes long enough to be killed in it.
_ANSWERS: Final = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "per_device_eval_batch_size": 1,
}
# Few tokens: the number of interruptions matters, not the length.
_SHORTER: Final[dict[str, dict[str, Any]]] = {
    "causal-lm": {"block_size": 64},
    "masked-lm": {"max_seq_length": 32},
    "question-answering": {"max_seq_length": 128, "doc_stride": 32},
    "token-classification": {"max_seq_length": 32},
    "text-classification": {"max_seq_length": 32},
    "preference": {"max_length": 640},
}
_EVALUATED: Final = {
    "eval_strategy": "steps",
    "eval_steps": 7,
    "load_best_model_at_end": True,
    "per_device_eval_batch_size": 2,
}


@dataclass(frozen=True)
class Case:
    """An example of the repository with a tiny model that has dropout, and other options."""

    name: str
    example: str
    model: Callable[[Path, dict[str, Any]], Path]
    training: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)

    @property
    def has_reference(self) -> bool:
        return self.example == "preference"

    def body(self, home: Path) -> dict[str, Any]:
        body: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{self.example}.yaml").read_text())
        dataset = body["dataset"]
        dataset.pop("test", None)
        for split in {"train", "validation"} & dataset.keys():
            dataset[split] = _as_path(dataset[split])
        dataset |= {"source": "path", "max_train_samples": 150, "max_eval_samples": 16}
        body["task"] |= _SHORTER.get(body["task"]["type"], {}) | self.task
        body["training"] = {"use_cpu": True, **_TRAINING, **self.training}
        body["model"]["name_or_path"] = str(self.model(home / "model", dataset))
        body.pop("hub", None)
        return body | {"max_retries": 100} | self.changes


def _as_path(value: Any) -> Any:
    """The absolute path of a file, or of each of several named files."""
    if isinstance(value, dict):
        return {name: _as_path(file) for name, file in value.items()}
    return str((EXAMPLES / value).resolve())


def _gpt2(folder: Path, _dataset: Any) -> Path:
    return save_tiny_gpt2(folder)


def _bert(folder: Path, _dataset: Any) -> Path:
    return save_tiny_bert(folder)


def _llama(folder: Path, _dataset: Any) -> Path:
    return save_tiny_llama(folder, positions=640)


def _xlnet(folder: Path, _dataset: Any) -> Path:
    return save_tiny_xlnet(folder)


def _t5(folder: Path, dataset: dict[str, Any]) -> Path:
    return save_tiny_t5(folder, Path(dataset["train"]).read_text(encoding="utf-8").splitlines())


CASES: Final = (
    Case("causal-lm fp32, evaluated", "causal-lm", _gpt2, _EVALUATED),
    Case("causal-lm bf16", "causal-lm", _gpt2, _BF16),
    Case("masked-lm fp32", "masked-lm", _bert),
    Case("masked-lm bf16 by length", "masked-lm", _bert, _BF16 | _BY_LENGTH),
    Case("question-answering fp32 by length", "question-answering", _bert, _BY_LENGTH),
    Case("question-answering bf16", "question-answering", _bert, _BF16),
    Case("beam-search bf16", "question-answering-beam-search", _xlnet, _BF16),
    Case("text-classification bf16", "text-classification", _bert, _BF16),
    Case("token-classification fp32 by length", "token-classification", _bert, _BY_LENGTH),
    Case("summarization fp32 by length", "summarization", _t5, _BY_LENGTH),
    Case("translation bf16", "translation", _t5, _BF16),
    Case("causal-lm LoRA fp32", "causal-lm", _gpt2, changes=_LORA),
    Case("question-answering LoRA bf16", "question-answering", _bert, _BF16, _LORA),
    Case("causal-lm fp32 in two processes", "causal-lm", _gpt2, changes=_TWO),
    Case("masked-lm bf16 in two processes", "masked-lm", _bert, _BF16, _TWO),
    Case("preference DPO LoRA bf16", "preference", _llama, _ANSWERS | _BF16, _LORA),
    Case("preference KTO fp32", "preference", _llama, _ANSWERS, {"peft": None}, _KTO),
)


def run(seed: int, scale: Scale) -> Row:
    """All cases; SHORT: one, interrupted twice. `main` prints a row for each."""
    cases = scale.pick(short=CASES[:1], full=CASES)
    kinds = scale.pick(short=INTERRUPTIONS[1::2], full=INTERRUPTIONS)
    holds = "the weights' sha256 and every later step's loss are the undisturbed run's"
    with timed("interrupted trainings", holds) as report:
        results = [attack(case, seed, kinds) for case in cases]
    report.done = (
        f"{len(cases)} trainings, {sum(len(r.instants) for r in results)} interruptions "
        f"({', '.join(kinds)})"
    )
    report.outcome = f"{sum(r.compared for r in results)} losses equal, all weights equal"
    report.faults = [f"{r.case}: {fault}" for r in results for fault in r.faults]
    return report.row()


@dataclass
class Result:
    case: str
    instants: list[str]
    """The interruptions, and after which step each came."""
    compared: int
    """Losses; those of a repeated step count each time."""
    faults: list[str]

    def line(self) -> str:
        verdict = "; ".join(self.faults) or f"sha256 equal, {self.compared} losses equal"
        return f"| {self.case} | {', '.join(self.instants)} | {verdict} |"


def attack(case: Case, seed: int, kinds: Sequence[str] = INTERRUPTIONS) -> Result:
    """Train twice, once interrupted by each kind in an order and at steps that `seed` draws."""
    draw = random.Random(f"{seed} {case.name}")
    kinds = draw.sample(kinds, len(kinds))
    # The last quarter of the training is left for a late interruption to take effect.
    share = STEPS * 3 // 4 // len(kinds)
    with TemporaryDirectory() as folder, _service(Path(folder)) as service:
        spec = JobSpec.model_validate(case.body(Path(folder)))
        undisturbed = service.train(spec)
        instants = [place * share + draw.randint(1, share) for place in range(len(kinds))]
        planned = list(zip(kinds, instants, strict=True))
        if case.has_reference:
            service.forget_references()
            planned.insert(0, (IN_REFERENCE, 0))
        broken = service.train(spec, planned)
    faults = [
        f"the loss of step {step} is {loss!r}, not {undisturbed.losses[0][1][step]!r}"
        for _, losses in broken.losses
        for step, loss in losses.items()
        if loss != undisturbed.losses[0][1][step]
    ]
    if broken.sha256 != undisturbed.sha256:
        faults.append(f"weights {broken.sha256}, not {undisturbed.sha256}")
    if len(broken.instants) < len(planned):
        faults.append(f"only {', '.join(broken.instants)} came in time")
    return Result(
        case.name, broken.instants, sum(len(losses) for _, losses in broken.losses), faults[:3]
    )


@dataclass
class _Trained:
    sha256: str = ""
    losses: list[tuple[int, dict[int, float]]] = field(default_factory=list)
    """(epoch of the attempt, step → loss)."""
    instants: list[str] = field(default_factory=list)


class _Service:
    """Database, settings and a supervisor; the caller does what the reconciler would do."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(
            home=home / "home",
            data_roots=[EXAMPLES],
            model_roots=[home / "model"],
            beat_seconds=1,
            poll_seconds=0.05,
            system_metrics_seconds=60,
        )
        self.settings.home.mkdir()
        self.database = Database(self.settings.sqlalchemy_url)
        schema.upgrade(self.database.engine)
        self.fork_client = fork_client.make(self.settings, [])
        self.events: list[StageEvent] = []
        self._prepared: dict[str, Any] | None = None

    def train(self, spec: JobSpec, interruptions: Sequence[tuple[str, int]] = ()) -> _Trained:
        job_id, trained = state.new_job_id(), _Trained()
        with self.database.write() as session:
            state.insert(session, job_id, spec)
        self._prepare(job_id)
        left = list(interruptions)
        while (row := self._row(job_id)).stage == Stage.TRAIN:
            self._requeue(row)
            kind, step = left.pop(0) if left else ("", 0)
            self._attempt(job_id, kind, step, trained)
        trained.sha256 = row.results[Stage.TRAIN]["weights_sha256"]
        return trained

    def _prepare(self, job_id: str) -> None:
        """Run `prepare` once; a second job of the same spec gets the first one's result."""
        claimed = self._claim(job_id)
        if self._prepared is None:
            self._supervisor().supervise(claimed)
            row = self._row(job_id)
            assert row.stage == Stage.TRAIN, row.failure
            self._prepared = row.results[Stage.PREPARE]
            return
        policy = endings.Policy(self.settings.crash_limit, 0)
        with self.database.write() as session:
            finished = endings.Ending.finished(self._prepared)
            endings.end(session, job_id, claimed.epoch, finished, policy)

    def _requeue(self, row: JobRow) -> None:
        if row.state == JobState.FAILED:
            raise RuntimeError(f"the job has failed: {row.failure}")
        with self.database.write() as session:
            if row.state == JobState.PAUSED:
                state.move(session, row.id, JobState.PAUSED, JobState.QUEUED, "resume_requested")
            session.get_one(JobRow, row.id).not_before = db_now()

    def _attempt(self, job_id: str, kind: str, step: int, trained: _Trained) -> None:
        shutdown, over = Shutdown(), threading.Event()
        self.events.clear()
        claimed = self._claim(job_id)
        attacker = _Attacker(self, claimed, shutdown, over)
        thread = threading.Thread(target=attacker.interrupt, args=(kind, step))
        thread.start()
        self._supervisor(shutdown).supervise(claimed)
        over.set()
        thread.join()
        if kind == IN_REFERENCE and self._has_reference():  # it came too late
            attacker.interrupted_after = None
        losses = {e.step: e.values["loss"] for e in self.events if _is_loss(e)}
        trained.losses.append((claimed.epoch, losses))
        if attacker.interrupted_after is not None and self._row(job_id).stage == Stage.TRAIN:
            trained.instants.append(f"{kind} after {attacker.interrupted_after}")

    def _supervisor(self, shutdown: Shutdown | None = None) -> Supervisor:
        start = spawn.new_interpreter if self.fork_client is None else self.fork_client.start
        return Supervisor(
            self.database, self.settings, NullTracker(), start=start, shutdown=shutdown
        )

    def _claim(self, job_id: str) -> Claim:
        with self.database.write() as session:
            claimed = claims.claim(
                session, job_id, "worker", queues=["cpu", "gpu"], gpus=(), lease_seconds=600
            )
        assert claimed is not None
        return claimed

    def _row(self, job_id: str) -> JobRow:
        with self.database.read() as session:
            return session.get_one(JobRow, job_id)

    def forget_references(self) -> None:
        shutil.rmtree(self._references)

    def _has_reference(self) -> bool:
        return any(self._references.glob(f"*/{atomic_dir.MANIFEST}"))

    @property
    def _references(self) -> Path:
        return self.settings.cache_dir / prepared_data.REFERENCE

    @property
    def phase(self) -> Phase | None:
        phases = [event.phase for event in list(self.events) if isinstance(event, PhaseChanged)]
        return phases[-1] if phases else None

    def last_step(self) -> int:
        return max((event.step for event in list(self.events) if _is_loss(event)), default=0)


def _is_loss(event: StageEvent) -> TypeGuard[Metric]:
    return isinstance(event, Metric) and event.kind == "train"


class _Attacker:
    """Waits for its step in a thread, and interrupts the training once."""

    def __init__(
        self, service: _Service, claimed: Claim, shutdown: Shutdown, over: threading.Event
    ) -> None:
        self._service = service
        self._claim = claimed
        self._shutdown = shutdown
        self._over = over
        self.interrupted_after: int | None = None

    def interrupt(self, kind: str, step: int) -> None:
        while not self._over.wait(0.002):
            if kind and self._service.last_step() >= step and self._is_time(kind):
                self._act(kind)
                self.interrupted_after = self._service.last_step()
                return

    def _is_time(self, kind: str) -> bool:
        if kind == IN_REFERENCE:
            return self._service.phase is Phase.REFERENCE
        if not kind.endswith("save"):
            return True
        attempt = self._service.settings.workspace(self._claim.job_id) / "attempts"
        return any((attempt / str(self._claim.epoch) / "checkpoints").glob("*.tmp"))

    def _act(self, kind: str) -> None:
        if kind == "shutdown":
            self._shutdown.request()
        elif kind == "pause":
            with self._service.database.write() as session:
                running, pausing = JobState.RUNNING, JobState.PAUSING
                state.move(session, self._claim.job_id, running, pausing, "pause_requested")
        else:
            for process in psutil.Process().children(recursive=True):
                if attempt_of(process) == (self._claim.job_id, self._claim.epoch):
                    os.kill(process.pid, signal.SIGKILL)
                    return


@contextmanager
def _service(home: Path) -> Iterator[_Service]:
    """A service that keeps all events: SQL has only a step's first loss, and all are compared."""
    service = _Service(home)
    original = EventRecorder.add

    def add(self: EventRecorder, event: StageEvent) -> None:
        service.events.append(event)
        original(self, event)

    EventRecorder.add = add  # type: ignore[method-assign]
    try:
        yield service
    finally:
        EventRecorder.add = original  # type: ignore[method-assign]
        if service.fork_client is not None:
            service.fork_client.close()
        service.database.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.attacks.trainings.exact_resume")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="parts of the cases' names")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    sys.stdout.write("| case | interrupted | result |\n|---|---|---|\n")
    faults = False
    for case in CASES:
        if arguments.only is None or any(word in case.name for word in arguments.only):
            begun = time.monotonic()
            result = attack(case, arguments.seed)
            seconds = time.monotonic() - begun
            sys.stdout.write(f"{result.line()} {seconds:.0f} s |\n")
            sys.stdout.flush()
            faults = faults or bool(result.faults)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
