"""The checker finds each broken promise in a fabricated history."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from chaos.checks.checker import history_faults
from service.store.tables.jobs import EventRow

_AT = datetime(2026, 1, 1, tzinfo=UTC)


def _event(kind: str, epoch: int, **data: Any) -> EventRow:
    return EventRow(job_id="job-1", seq=0, at=_AT, type=kind, epoch=epoch, data=data)


def _numbered(events: Sequence[EventRow]) -> list[EventRow]:
    for seq, event in enumerate(events, start=1):
        event.seq = seq
    return list(events)


def _stage(stage: str, epoch: int, to: str) -> list[EventRow]:
    """One attempt that finishes."""
    return [
        _event("stage_started", epoch, stage=stage, **{"from": "queued", "to": "running"}),
        _event("phase", epoch, phase="loading"),
        _event("stage_finished", epoch, stage=stage, **{"from": "running", "to": to}),
    ]


def _good() -> list[EventRow]:
    return [
        _event("submitted", 0, to="queued"),
        _event("notice", 0, message="No worker has 4 GPUs"),
        *_stage("prepare", 1, "queued"),
        *_stage("train", 2, "queued"),
        *_stage("publish", 3, "succeeded"),
    ]


def test_a_good_history() -> None:
    assert history_faults(_numbered(_good()), "succeeded") == []


def _records_an_event_late(events: list[EventRow]) -> None:
    events.insert(5, _event("checkpoint", 1, step=4))


def _records_under_an_old_epoch(events: list[EventRow]) -> None:
    events[6].epoch = 1


def _warns_late(events: list[EventRow]) -> None:
    events.insert(5, _event("notice", 0, message="No worker has 4 GPUs"))


def _starts_while_held(events: list[EventRow]) -> None:
    del events[4]


def _does_not_raise_the_epoch(events: list[EventRow]) -> None:
    for event in events[5:8]:
        event.epoch = 1


def _finishes_twice(events: list[EventRow]) -> None:
    events[5:5] = _stage("prepare", 2, "queued")
    for event in events[8:]:
        event.epoch += 1


def _ends_twice(events: list[EventRow]) -> None:
    events.append(_event("cancelled", 3, **{"from": "running", "to": "cancelled"}))


def _leaves_out_a_stage(events: list[EventRow]) -> None:
    del events[5:8]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (_records_an_event_late, "event 6, checkpoint, of epoch 1; 1 was last"),
        (_records_under_an_old_epoch, "event 7, phase, of epoch 1; 2 was last"),
        (_warns_late, "event 6, notice, of epoch 0; 1 was last"),
        (_starts_while_held, "event 5 starts epoch 2 while 1 is held"),
        (_does_not_raise_the_epoch, "event 6 starts epoch 1 after 1"),
        (_finishes_twice, "finished twice: ['prepare']"),
        (_ends_twice, "2 terminal states: ['stage_finished', 'cancelled']"),
        (_leaves_out_a_stage, "succeeded after ['prepare', 'publish']"),
    ],
)
def test_a_broken_promise(spoil: Callable[[list[EventRow]], None], fault: str) -> None:
    events = _good()
    spoil(events)
    assert fault in history_faults(_numbered(events), "succeeded")


def test_a_lost_event() -> None:
    events = _numbered(_good())
    del events[3]
    [fault] = history_faults(events, "succeeded")
    assert fault.startswith("the events have gaps")


def test_another_state_than_the_historys() -> None:
    assert history_faults(_numbered(_good()), "failed") == [
        "the history ends in succeeded, the job is failed"
    ]
