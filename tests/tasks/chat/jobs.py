"""Jobs of chat on a few conversations with a tiny Llama."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.contract.stage.events import Notice
from tests.support.models import save_tiny_llama
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import PLAIN

Row = dict[str, Any]
Make = Callable[..., StagedJob]


def talk(question: str, *rest: str) -> Row:
    """Turns of the user and the assistant by turns."""
    roles = ("user", "assistant")
    texts = (question, *rest)
    return {"messages": [{"role": roles[n % 2], "content": t} for n, t in enumerate(texts)]}


def conversation(number: int) -> Row:
    """One of 1 to 4 questions, and the answer with a result behind `####`."""
    question = f"the report {number} of the board " * (1 + number % 4)
    return talk(question, f"was read by all #### {number}")


ROWS = [conversation(number) for number in range(24)]


def chat_job(
    home: Path,
    rows: list[Row] = ROWS,
    training: dict[str, Any] | None = None,
    splits: dict[str, list[Row]] | None = None,
    model: Path | None = None,
    **task: Any,
) -> StagedJob:
    """`splits`: the rows of the others."""
    options = PLAIN | {"logging_steps": 1, "learning_rate": 1e-2}
    options |= {"max_steps": 5, "per_device_train_batch_size": 4, **(training or {})}
    model = model or save_tiny_llama(home / "llama")
    return job_of(home, {"type": "chat", **task}, model, {"train": rows, **(splits or {})}, options)


def notices(job: StagedJob) -> list[str]:
    """The notices of the job's preparation."""
    return [each.message for each in job.notices if isinstance(each, Notice)]
