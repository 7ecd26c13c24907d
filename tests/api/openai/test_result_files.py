"""`result_files` of a job: its numbers as CSV, through the openai client."""

import hashlib

import openai
import pytest

from service.api.openai import result_files
from service.errors import UploadNotFoundError
from service.store.database import Database, db_now
from service.store.scope import Scope
from service.store.tables.jobs import MetricRow
from tests.api.conftest import Server
from tests.support.factories import make_job
from tests.support.store.job_rows import put

CSV = (
    b"step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n"
    b"1,2.5,,,\n"
    b"2,1.5,0.25,1.25,0.5\n"
    b"3,,,,\n"
)


def trained(database: Database) -> str:
    """Id of a job that has trained and ended."""
    job_id = make_job(database)
    points = (
        ("train", 1, {"loss": 2.5}),
        ("train", 2, {"loss": 1.5, "accuracy": 0.25}),
        ("train", 3, {"loss": "nan"}),
        ("system", 2, {"loss": 9.0}),
        ("eval", 2, {"eval_loss": 1.25, "eval_accuracy": 0.5}),
    )
    with database.write() as session:
        for seq, (kind, step, values) in enumerate(points, 1):
            row = MetricRow(job_id=job_id, seq=seq, kind=kind, step=step, values=values)
            row.at = db_now()
            session.add(row)
    put(database, job_id, state="succeeded", ended_at=db_now(), results={"train": {}})
    return job_id


def test_numbers_of_each_step(client: openai.OpenAI, database: Database) -> None:
    job = client.fine_tuning.jobs.retrieve(trained(database))
    (file_id,) = job.result_files
    file = client.files.retrieve(file_id)
    assert (file.id, file.bytes, file.purpose, file.filename, file.created_at) == (
        file_id,
        len(CSV),
        "fine-tune-results",
        "step_metrics.csv",
        job.finished_at,
    )
    assert file.model_extra is not None
    assert file.model_extra["sha256"] == hashlib.sha256(CSV).hexdigest()
    assert client.files.content(file_id).read() == CSV


def test_a_range_and_what_the_client_has(server: Server, database: Database) -> None:
    path = f"/v1/files/file-results{trained(database).removeprefix('job-')}/content"
    part = server.client.get(path, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"step")
    again = server.client.get(path, headers={"If-None-Match": part.headers["ETag"]})
    assert again.status_code == 304


def test_it_is_deleted_with_the_job(client: openai.OpenAI, database: Database) -> None:
    job_id = trained(database)
    (file_id,) = client.fine_tuning.jobs.retrieve(job_id).result_files
    with pytest.raises(openai.ConflictError, match=f"Delete the job {job_id} instead"):
        client.files.delete(file_id)
    client.delete(f"/jobs/{job_id}", cast_to=object)
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file_id)


def test_not_for_another_project(database: Database) -> None:
    job_id = trained(database)
    with database.read() as session, pytest.raises(UploadNotFoundError):
        result_files.make(session, Scope("other"), job_id)


def test_none_before_the_end(client: openai.OpenAI, database: Database) -> None:
    job_id = make_job(database)
    assert client.fine_tuning.jobs.retrieve(job_id).result_files == []
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(f"file-results{job_id.removeprefix('job-')}")
