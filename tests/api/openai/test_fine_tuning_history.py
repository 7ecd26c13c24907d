"""The unmodified client of OpenAI against a live server: events and checkpoints of a job."""

from datetime import timedelta
from typing import Any

import openai
import pytest
from openai.types import Model
from openai.types.fine_tuning import FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from service.store.tables.jobs import EventRow
from tests.api.conftest import Server
from tests.api.factories import START, add_job
from tests.api.openai.chat_jobs import CHAT, strict, trained

AT = START + timedelta(seconds=1.5)
FAILED = {"stage": "train", "failure": {"code": "timeout", "message": "Late."}}
LEVELS: list[tuple[str, dict[str, Any], str]] = [
    ("attempt_failed", {**FAILED, "retry": True}, "warn"),
    ("attempt_failed", {**FAILED, "retry": False}, "error"),
    ("lease_expired", {**FAILED, "retry": True}, "warn"),
    ("lease_expired", {**FAILED, "retry": False}, "error"),
    ("notice", {"message": "read"}, "info"),
    ("notice", {"message": "read", "data": {"reason": "no_answer"}}, "info"),
    ("paused", {"data": {"code": "slow"}}, "info"),
    ("notice", {"message": "Line 3", "data": {"split": "train", "reason": "no_answer"}}, "error"),
    ("notice", {"message": "spec", "data": {"code": "slow"}}, "warn"),
    ("notice", {"message": "read", "data": {"split": "train", "rows": 3}}, "info"),
]


def test_levels_of_events(client: openai.OpenAI, server: Server) -> None:
    job_id = add_job(server.database, spec=CHAT, state="failed", event_seq=len(LEVELS))
    with server.database.write() as session:
        session.add_all(
            EventRow(job_id=job_id, seq=seq, type=kind, epoch=1, data=data, at=START)
            for seq, (kind, data, _) in enumerate(LEVELS, start=1)
        )
    found = client.fine_tuning.jobs.list_events(job_id)
    assert [event.level for event in found] == [level for *_, level in reversed(LEVELS)]


def test_a_message_is_one_that_a_terminal_can_show(client: openai.OpenAI, server: Server) -> None:
    job_id = add_job(server.database, spec=CHAT, event_seq=2)
    texts = ("\x1b[2J", "m" * 5000)
    with server.database.write() as session:
        session.add_all(
            EventRow(job_id=job_id, seq=seq, type="notice", epoch=1, data={"message": text}, at=AT)
            for seq, text in enumerate(texts, start=1)
        )
    long, steering = client.fine_tuning.jobs.list_events(job_id)
    assert (steering.message, long.message) == ("\\x1b[2J", "m" * 4000)
    assert (steering.created_at, steering.type) == (int(START.timestamp()) + 1, "message")


def test_events_come_newest_first_in_pages_of_any_size(
    client: openai.OpenAI, server: Server
) -> None:
    job_id = trained(server)
    hexadecimal = job_id.removeprefix("job-")
    expected = [
        f"ftevent-{hexadecimal}-{kind}"
        for seq in (5, 4, 3, 2, 1)
        for kind in (f"e{seq}", f"m{2 * seq}")
    ]
    for limit in (*range(1, 12), 1000):
        found = list(client.fine_tuning.jobs.list_events(job_id, limit=limit))
        assert [event.id for event in found] == expected
    for event in found:
        strict(event, FineTuningJobEvent)
    assert (found[0].type, found[0].message, found[0].data) == ("message", "paused", None)
    assert found[5].message == "evaluation at step 20: accuracy 0.75, loss 0.25"
    assert (found[5].type, found[5].level) == ("metrics", "info")
    assert found[5].created_at == int(START.timestamp()) + 3
    assert found[5].data == {
        "step": 20,
        "valid_loss": 0.25,
        "valid_mean_token_accuracy": 0.75,
        "full_valid_loss": 0.25,
        "full_valid_mean_token_accuracy": 0.75,
    }
    assert found[7].data == {"step": 20, "train_loss": 0.5}
    own = f"ftevent-{hexadecimal}-"
    assert client.fine_tuning.jobs.list_events(job_id, after=f"{own}e{2**31 - 1}").data == []
    for wrong in ("x", "ftevent-0-e1", f"{own}e1\n", f"{own}e{2**31}", f"{own}m9999999999"):
        with pytest.raises(openai.BadRequestError) as raised:
            client.fine_tuning.jobs.list_events(job_id, after=wrong)
        assert raised.value.param == "after"


def test_checkpoints_are_named(client: openai.OpenAI, server: Server) -> None:
    job_id = trained(server)
    page = client.fine_tuning.jobs.checkpoints.list(job_id, limit=1)
    assert page.has_more is True
    both = list(client.fine_tuning.jobs.checkpoints.list(job_id, limit=1))
    assert [each.step_number for each in both] == [30, 20]
    own = f"ftckpt-{job_id.removeprefix('job-')}-"
    assert [each.id for each in both] == [f"{own}30", f"{own}20"]
    later = client.fine_tuning.jobs.checkpoints.list(job_id, after=f"{own}{2**31 - 1}")
    assert [each.step_number for each in later] == [30, 20]
    for wrong in ("x", "ftckpt-0-20", f"{own}20\n", f"{own}{2**31}"):
        with pytest.raises(openai.BadRequestError) as raised:
            client.fine_tuning.jobs.checkpoints.list(job_id, after=wrong)
        assert raised.value.param == "after"
        assert raised.value.body["message"] == (  # type: ignore[index]
            "Invalid request: 1 error: query.after: must be the id of a checkpoint of this job"
        )
    sent = strict(both[1], FineTuningJobCheckpoint)
    assert (sent["created_at"], sent["fine_tuning_job_id"]) == (int(START.timestamp()), job_id)
    name = f"ft:base:default:support:{job_id}:ckpt-step-20"
    assert sent["fine_tuned_model_checkpoint"] == name
    assert sent["metrics"] == {
        "step": 20,
        "train_loss": 0.5,
        "train_mean_token_accuracy": None,
        "valid_loss": 0.25,
        "valid_mean_token_accuracy": 0.75,
        "full_valid_loss": 0.25,
        "full_valid_mean_token_accuracy": 0.75,
    }
    assert strict(client.models.retrieve(name), Model)["id"] == name
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve(name.replace("-20", "-10"))
    with pytest.raises(openai.BadRequestError):
        client.models.delete(name)
