"""`python -m worker.inference`: rows on stdin, answers on stdout, until stdin ends.

`finetune try` starts it. The lines are described in service/contract/inference.py.
"""

import os
import signal
import sys
import traceback
from io import TextIOWrapper
from typing import TextIO, cast

from service import inherited_secrets
from service.contract.failures import FailureCode
from service.contract.inference import Answers, InferenceRequest, Rows
from service.prctl import die_with_parent


def main() -> None:
    die_with_parent(os.getppid())
    inherited_secrets.adopt()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches `finetune try`, which ends this
    answers = _private_stdout()
    cast(TextIOWrapper, sys.stdin).reconfigure(encoding="utf-8")
    first = sys.stdin.readline()
    if not first:  # `finetune try` was given no rows
        return
    request = InferenceRequest.model_validate_json(first)
    from worker.inference.predictor import Predictor  # imports torch
    from worker.stages.quiet_libraries import quiet_libraries

    quiet_libraries()
    predictor: Predictor | None = None
    for line in sys.stdin:
        try:
            given = Rows.model_validate_json(line)
            predictor = predictor or Predictor(request)
            answer = predictor.predict(given.rows)
        except Exception as error:
            answer = _refusal(error)
        answers.write(answer.model_dump_json() + "\n")
        answers.flush()


def _refusal(error: Exception) -> Answers:
    from worker.stages.base import failure_of

    failure = failure_of(error)
    if failure.code is FailureCode.INTERNAL:
        traceback.print_exception(error)
    return Answers(failure=failure)


def _private_stdout() -> TextIO:
    """Where the answers go. What libraries print goes to stderr from here on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
