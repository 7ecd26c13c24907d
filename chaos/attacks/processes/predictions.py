"""SIGKILL of models in memory, their supervisors and workers while predictions are asked for."""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil
from sqlalchemy import select

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import INPUTS, FaultStack, running
from chaos.stack.processes import supervisors
from service.contract.interactive.predictions import UNFINISHED, PredictionRequest
from service.store.database import Database
from service.store.interactive import predictions
from service.store.tables.interactive import PredictionRow
from tests.support.models import save_tiny_llama

HOLDS: Final = (
    "each prediction ends exactly once, with the text that transformers generates or the failure "
    "that its workers were lost too often; no process and no device lock is left"
)
_KINDS, _WEIGHTS = ("model", "supervisor", "worker", "fork server"), (4, 2, 1, 1)
_PROMPTS: Final = ("the report", "the water board", "was read by all", "in the morning", "of the")
_TOKENS: Final = 100
_UNFINISHED: Final = 6
_SEARCH_SECONDS: Final = 15.0
_PATIENCE_SECONDS: Final = 300.0
_LOST: Final = frozenset({"crash_limit", "worker_lost"})

Asked = tuple[Path, str]
"""Folder of the model, and prompt."""


def run(seed: int, scale: Scale) -> Row:
    count = scale.pick(short=12, full=100)
    kills = scale.pick(short=6, full=50)
    rng = random.Random(seed)
    with (
        timed("SIGKILL while predictions are answered", HOLDS) as report,
        running(workers=2, database=scale.pick(short="sqlite", full="postgres")) as stack,
    ):
        work = Work(stack, rng)
        killed: Counter[str] = Counter()
        while killed.total() < kills or len(work.asked) < count:
            work.ask_more()
            time.sleep(rng.expovariate(1 / 0.8))
            stack.revive()
            if killed.total() < kills:
                kind = rng.choices(_KINDS, _WEIGHTS)[0]
                killed[kind] += _kill_one(stack, work, kind, rng)
        stack.wait(lambda: not work.unfinished(), _PATIENCE_SECONDS, "the last answers")
        answered, faults = work.compared()
        report.faults += faults + checker.left_over(stack)
        work.close()
        counts = ", ".join(f"{killed[kind]} {kind}" for kind in _KINDS)
        report.done = f"{killed.total()} SIGKILLs over {len(work.asked)} predictions ({counts})"
        lost = len(work.asked) - answered
        report.outcome = f"{answered} had the text of transformers, {lost} lost their workers"
    return report.row()


def _kill_one(stack: FaultStack, work: "Work", kind: str, rng: random.Random) -> bool:
    """Wait a while for a process of the kind; whether there was one."""
    deadline = time.monotonic() + _SEARCH_SECONDS
    while time.monotonic() < deadline:
        work.ask_more()  # without a prediction no model is loaded
        stack.revive()
        found = [each for name in stack.workers for each in _of_kind(stack, name, kind)]
        time.sleep(rng.uniform(0, 0.1))
        with suppress(ProcessLookupError):
            if found:
                os.kill(rng.choice(found), signal.SIGKILL)
                return True
    return False


def _of_kind(stack: FaultStack, name: str, kind: str) -> list[int]:
    part = stack.parts[name]
    match kind:
        case "worker":
            return [part.process.pid] if part.process.poll() is None else []
        case "supervisor":
            return [process.pid for process in supervisors(part)]
        case "model":
            return _running(part.family(), "worker.inference.server")
        case _:
            return _running(part.family(), "worker.stages.fork_server")


def _running(processes: list[psutil.Process], module: str) -> list[int]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            # As its own argument: the fork server has the names of all that it imports.
            if process.cmdline()[2:4] == ["-m", module]:
                found.append(process.pid)
    return found


@dataclass(frozen=True)
class End:
    state: str
    ended_at: datetime | None
    text: str | None
    code: str | None


class Work:
    def __init__(self, stack: FaultStack, rng: random.Random) -> None:
        self._database = Database(stack.database_url)
        self._rng = rng
        folder = stack.home / INPUTS
        models = [save_tiny_llama(folder / f"llama-{number}", seed=number) for number in (0, 1)]
        self._texts = {
            (model, prompt): _generated(model, prompt) for model in models for prompt in _PROMPTS
        }
        self.asked: dict[str, Asked] = {}
        self._ended: dict[str, End] = {}
        """As they were when they were first seen to have ended."""

    def ask_more(self) -> None:
        for _ in range(_UNFINISHED - len(self.unfinished())):
            model, prompt = self._rng.choice(list(self._texts))
            request = PredictionRequest.model_validate(
                {
                    "model": {"name_or_path": str(model)},
                    "input": {"kind": "completion", "prompt": prompt},
                    "options": {"max_new_tokens": _TOKENS, "temperature": 0},
                }
            )
            with self._database.write() as session:
                self.asked[predictions.insert(session, "default", request)] = (model, prompt)

    def unfinished(self) -> list[str]:
        now = self._states()
        for each, end in now.items():
            if end.state not in UNFINISHED:
                self._ended.setdefault(each, end)
        return [each for each in self.asked if each not in self._ended]

    def compared(self) -> tuple[int, list[str]]:
        """How many had the right text, and which promises were broken."""
        now, answered, faults = self._states(), 0, []
        for each, asked in self.asked.items():
            end = self._ended[each]
            if now.get(each) != end:
                faults.append(f"{each} changed after its end: {end} → {now.get(each)}")
            if end.state == "succeeded" and end.text == self._texts[asked]:
                answered += 1
            elif end.state != "failed" or end.code not in _LOST:
                faults.append(f"{each} ended as {end}; expected {self._texts[asked]!r}")
        return answered, faults

    def _states(self) -> dict[str, End]:
        with self._database.read() as session:
            rows = session.scalars(select(PredictionRow)).all()
        return {row.id: _end_of(row) for row in rows}

    def close(self) -> None:
        self._database.dispose()


def _end_of(row: PredictionRow) -> End:
    text = row.result["choices"][0]["text"] if row.result else None
    return End(row.state, row.ended_at, text, row.failure["code"] if row.failure else None)


def _generated(model_dir: Path, prompt: str) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=_TOKENS,
            pad_token_id=0,
        )
    text = str(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True))
    return text.replace("\0", "\ufffd")  # Postgres stores no NUL
