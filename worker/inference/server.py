"""`python -m worker.inference.server request.json`: answers predictions with one model, which it
keeps in memory, until stdin ends.

The lines are described in service/contract/stage/prediction_events.py.
"""

import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from service.contract.failures import Failure, FailureCode, StageError
from service.contract.fields.section import Acceptance
from service.contract.interactive.predictions import MOST_BYTES, PredictionRequest, PredictionResult
from service.contract.stage.prediction_events import (
    ORDER,
    Answered,
    Ask,
    PredictorRequest,
    Refused,
    Stop,
    Written,
)
from service.contract.stage.stages import EVENT_FD_VARIABLE
from service.system import inherited_secrets
from service.system.prctl import die_with_parent, forbid_inspection
from worker import failures

_WRITE_SECONDS: Final = 0.15
"""Between two reports of how far the texts are."""


def main() -> None:
    die_with_parent(os.getppid())
    if inherited_secrets.adopt():
        forbid_inspection()
    content = Path(sys.argv[1]).read_bytes()
    request = PredictorRequest.model_validate_json(content, context=Acceptance())
    Server(request, int(os.environ[EVENT_FD_VARIABLE])).run()
    os._exit(0)


class Server:
    def __init__(self, request: PredictorRequest, events: int) -> None:
        os.set_inheritable(events, False)
        self._request = request
        self._events = events
        self._asked: queue.Queue[Ask | None] = queue.Queue()
        self._stopped: set[str] = set()
        self._models = Models(request)

    def run(self) -> None:
        """Until stdin ends."""
        threading.Thread(target=self._listen, daemon=True).start()
        while (asked := self._asked.get()) is not None:
            self._send(self._answered(asked))
            self._stopped.discard(asked.id)

    def _listen(self) -> None:
        for line in sys.stdin:
            order = ORDER.validate_json(line)
            if isinstance(order, Stop):
                self._stopped.add(order.id)
            else:
                self._asked.put(order)
        self._asked.put(None)

    def _answered(self, asked: Ask) -> Answered | Refused:
        try:
            given = PredictionRequest.model_validate_json(asked.file.read_bytes())
            result = self._models.answer(
                given, self._reporter(asked.id), lambda: asked.id in self._stopped
            )
            if asked.id in self._stopped:
                failure = Failure.from_code(FailureCode.CANCELLED, "The answer was stopped.")
                return Refused(id=asked.id, failure=failure)
            if not result.is_small():
                raise StageError(
                    FailureCode.DATA_TOO_LARGE,
                    f"The answer has more than {MOST_BYTES:,} bytes as JSON",
                    action="Ask for fewer tokens, choices, logprobs or rows.",
                )
        except Exception as error:
            return Refused(id=asked.id, failure=failures.small(_failure(error)))
        return Answered(id=asked.id, result=result)

    def _reporter(self, prediction_id: str) -> Callable[[list[str]], None]:
        sent, sent_at = [""], 0.0

        def report(texts: list[str]) -> None:
            nonlocal sent, sent_at
            now = time.monotonic()
            if texts != sent and now - sent_at >= _WRITE_SECONDS:
                sent, sent_at = texts, now
                self._send(Written(id=prediction_id, texts=texts))

        return report

    def _send(self, event: BaseModel) -> None:
        rest = memoryview(event.model_dump_json().encode() + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._events, rest) :]
        except BrokenPipeError:
            os._exit(1)  # the supervisor has ended


class Models:
    """One of the two forms that a model is loaded in: to write text, or to answer rows."""

    def __init__(self, request: PredictorRequest) -> None:
        self._request = request
        self._text: object | None = None
        self._rows: object | None = None

    def answer(
        self,
        asked: PredictionRequest,
        written: Callable[[list[str]], None],
        is_stopped: Callable[[], bool],
    ) -> PredictionResult:
        """Raises StageError."""
        from worker.stages.quiet_libraries import quiet_libraries

        quiet_libraries()
        if asked.input.kind == "rows":
            return self._answer_rows(asked.input.rows)
        from worker.inference.text_model import TextModel

        self._rows = None
        if not isinstance(self._text, TextModel):
            self._text = TextModel(self._request)
        return self._text.answer(asked, written, is_stopped)

    def _answer_rows(self, given: list[dict[str, object]]) -> PredictionResult:
        from worker.inference import rows
        from worker.inference.predictor import Predictor

        self._text = None
        if not isinstance(self._rows, Predictor):
            trained, own = self._request.trained, self._request.stage.attempt_dir
            assert trained is not None, "rows are of a job's task"
            self._rows = Predictor(trained, own, use_gpu=self._request.use_gpu)
        try:
            return self._rows.predict(given)
        except StageError as error:
            raise rows.refused(error) from error


def _failure(error: Exception) -> Failure:
    from worker.stages.base import failure_of

    failure = failure_of(error)
    if failure.code is FailureCode.INTERNAL:
        traceback.print_exception(error)
    return failure


if __name__ == "__main__":
    main()
