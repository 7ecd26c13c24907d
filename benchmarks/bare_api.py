"""The least that a FastAPI service must do to store a job: one INSERT, one SELECT, same engine.

`uvicorn --factory benchmarks.bare_api:create_app` is the reference for the real API's requests.
"""

from typing import Any

from fastapi import FastAPI, HTTPException
from sqlalchemy import insert, select

from service.contract.spec import SPEC_VERSION
from service.settings import get_settings
from service.store import jobs
from service.store.database import Database, db_now
from service.store.models import JobRow


def create_app() -> FastAPI:
    app = FastAPI()
    database = Database(get_settings().sqlalchemy_url)

    @app.post("/bare", status_code=201)
    def create(body: dict[str, Any]) -> dict[str, str]:
        job_id = jobs.new_job_id()
        with database.write() as session:
            session.execute(insert(JobRow).values(_row(job_id, body)))
        return {"id": job_id}

    @app.get("/bare/{job_id}")
    def read(job_id: str) -> dict[str, Any]:
        with database.read() as session:
            row = session.scalars(select(JobRow).where(JobRow.id == job_id)).one_or_none()
            if row is None:
                raise HTTPException(404)
            return {
                column.key: getattr(row, column.key) for column in JobRow.__mapper__.column_attrs
            }

    return app


def _row(job_id: str, spec: dict[str, Any]) -> dict[str, Any]:
    now = db_now()
    return {
        "id": job_id,
        "task": "question-answering",
        "spec": spec,
        "spec_version": SPEC_VERSION,
        "metadata_": {},
        "created_at": now,
        "updated_at": now,
        "state": "queued",
        "stage": "prepare",
        "last_metrics": {},
        "results": {},
        "queue": "cpu",
        "priority": 5,
        "queued_at": now,
        "not_before": now,
        "next_publish_at": now,
        "max_retries": 3,
    }
