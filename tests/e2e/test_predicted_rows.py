"""Rows for the models of jobs, through HTTP, broker and worker, while the API is killed.

What each task answers: tests/inference; what is refused: tests/api/interactive/test_predictions.py.
"""

import json
import threading
from pathlib import Path
from typing import Any, Final

import pytest
from finetune_client import Client

from tests.e2e.stack import Stack
from tests.support.models import save_tiny_bert, save_tiny_t5
from tests.support.servers.services import wait_until

pytestmark = [
    pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True),
    pytest.mark.timeout(600),
    pytest.mark.long,
    pytest.mark.heavy,
]

TEXT: Final = "the report of the water board was read by all who were there in the morning. " * 4


def trained(stack: Stack, folder: Path, model: Path, task: str, row: dict[str, str]) -> str:
    """The id of a finished job of two steps."""
    file = folder / f"{task}.jsonl"
    file.write_text(f"{json.dumps(row)}\n" * 8)
    body = {
        "task": task,
        "model": {"name_or_path": str(model)},
        "dataset": {"source": "upload", "train": stack.upload(file)},
        "training": {"max_steps": 2, "per_device_train_batch_size": 2, "use_cpu": True},
    }
    job_id = stack.submit(body)
    stack.finish(job_id)
    return job_id


def test_the_api_is_killed_while_a_client_waits(
    stack: Stack, tiny_model: Path, tmp_path: Path
) -> None:
    """Nothing is lost that had an id, and our client asks again for what had none."""
    t5 = save_tiny_t5(tiny_model.parent / "rows-t5", [TEXT])
    bert = save_tiny_bert(tiny_model.parent / "rows-bert")
    job_id = trained(stack, tmp_path, t5, "summarization", {"text": TEXT, "summary": "a report"})
    other = trained(stack, tmp_path, bert, "masked-lm", {"text": TEXT})
    asked = [{"text": TEXT}, {"text": "the board"}]

    def answers(of: str, rows: Any) -> Any:
        path = f"/v1/jobs/{of}/predict?wait=60"
        page = stack.http.post(path, json={"rows": rows}, timeout=90).json()
        assert page.get("failure") is None, page
        return page["answers"]

    expected = answers(job_id, asked)
    answers(other, [{"text": "the [MASK] of the water board"}])  # that takes its place
    path = f"/v1/jobs/{job_id}/predict?wait=0"
    first = stack.http.post(path, json={"rows": asked}).json()
    found: list[Any] = []

    def wait_for_it() -> None:
        with Client(stack.url, max_retries=8) as client:
            found.append(client.jobs.predict(job_id, asked).answers)

    waiting = threading.Thread(target=wait_for_it)
    waiting.start()
    page = f"/v1/predictions/{first['id']}"
    wait_until(lambda: stack.http.get(page).json()["state"] != "queued", 30, "its claim")
    stack.parts["api"].kill()
    stack.start_part("api", stack.parts["api"].arguments)
    wait_until(stack._answers, 30, "the API")
    wait_until(lambda: stack.http.get(page).json()["state"] == "succeeded", 60, "its end")
    assert stack.http.get(page).json()["answers"] == expected
    waiting.join(60)
    assert found == [expected]
