"""Chat jobs as rows, and what an answer of the client must have."""

import json
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from service.store.tables.jobs import CheckpointRow, EventRow, MetricRow
from tests.api.conftest import Server
from tests.api.factories import START, add_job

CHAT: dict[str, Any] = {
    "name": "support",
    "task": "chat",
    "model": {"name_or_path": "org/base"},
    "dataset": {"source": "hub", "name": "org/data"},
    "training": {"seed": 7},
}
TRAINED = {"train": {"output_dir": "attempts/1/output", "metrics": {"num_input_tokens_seen": 99}}}


def strict(value: Any, kind: type[BaseModel]) -> dict[str, Any]:
    """What the server sent, which has the fields of the client's type and no others."""
    sent = json.loads(value.to_json(exclude_unset=False, exclude_none=False))
    assert set(sent) == set(kind.model_fields)
    assert value.model_fields_set == set(kind.model_fields)
    return dict(sent)


def trained(server: Server, **columns: Any) -> str:
    """Id of a job that has succeeded, with events, metrics and three checkpoints."""
    job_id = add_job(
        server.database,
        spec=CHAT,
        state="succeeded",
        stage="publish",
        epoch=1,
        results=TRAINED,
        event_seq=7,
        metric_seq=10,
        ended_at=START,
        **columns,
    )
    rows: list[Any] = [
        CheckpointRow(
            job_id=job_id,
            step=step,
            epoch=1,
            path=f"attempts/1/checkpoints/{step}",
            bytes=1,
            manifest_sha256="0" * 64,
            metric=None,
            best=False,
            created_at=START,
            pruned_at=START if step == 10 else None,
        )
        for step in (10, 20, 30)
    ]
    for seq in range(1, 6):
        at = START + timedelta(seconds=seq)
        rows.append(
            EventRow(job_id=job_id, seq=seq, at=at, type="paused", epoch=0, data={"n": seq})
        )
        # Numbers with gaps, and the evaluation of step 20 among them.
        kind = "eval" if seq == 3 else "train"
        rows.append(
            MetricRow(
                job_id=job_id,
                seq=2 * seq,
                kind=kind,
                step=20 if seq in (2, 3) else seq,
                progress_epoch=None,
                at=at,
                values={"loss": 0.5} if kind == "train" else {"eval_loss": 0.25, "accuracy": 0.75},
            )
        )
    hidden: list[tuple[str, dict[str, Any]]] = [
        ("phase", {"phase": "saving"}),
        ("artifact", {"name": "model/config.json", "bytes": 1}),
    ]
    for seq, (kind, data) in enumerate(hidden, 6):
        rows.append(EventRow(job_id=job_id, seq=seq, at=at, type=kind, epoch=1, data=data))
    with server.database.write() as session:
        session.add_all(rows)
    return job_id
