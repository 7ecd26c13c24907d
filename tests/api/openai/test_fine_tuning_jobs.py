"""The unmodified client of OpenAI against a live server: jobs and models."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from openai.pagination import SyncCursorPage
from openai.types import Model, ModelDeleted
from openai.types.fine_tuning import FineTuningJob

from tests.api.conftest import Server
from tests.api.factories import START, add_job
from tests.api.openai.chat_jobs import CHAT, strict, trained
from tests.openai_clients.scripts.strict import require_exact

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_supervised_job_is_a_native_chat_job(
    client: openai.OpenAI, server: Server, file: str
) -> None:
    job = client.fine_tuning.jobs.create(
        model="org/base",
        training_file=file,
        validation_file=file,
        suffix="support",
        seed=5,
        metadata={"team": "x"},
        method={
            "type": "supervised",
            "supervised": {
                "hyperparameters": {
                    "n_epochs": 2,
                    "batch_size": 12,
                    "learning_rate_multiplier": 1.5,
                }
            },
        },
        extra_body={"integrations": [{"type": "mlflow", "mlflow": {"project": "talks"}}]},
    )
    sent = strict(job, FineTuningJob)
    given = {"n_epochs": 2, "batch_size": 12, "learning_rate_multiplier": 1.5}
    assert sent == {
        "id": job.id,
        "object": "fine_tuning.job",
        "created_at": job.created_at,
        "error": None,
        "fine_tuned_model": None,
        "finished_at": None,
        "hyperparameters": given,
        "model": "org/base",
        "organization_id": "default",
        "result_files": [],
        "seed": 5,
        "status": "validating_files",
        "trained_tokens": None,
        "training_file": file,
        "validation_file": file,
        "estimated_finish": None,
        # As the client makes it: its type has `wandb` alone.
        "integrations": [
            {"type": "mlflow", "wandb": None, "mlflow": {"project": "talks", "name": None}}
        ],
        "metadata": {"team": "x"},
        "method": {
            "type": "supervised",
            "supervised": {"hyperparameters": given},
            "dpo": None,
            "reinforcement": None,
        },
    }
    spec = server.client.get(f"/v1/jobs/{job.id}").json()["spec"]
    assert (spec["task"]["type"], spec["name"]) == ("chat", "support")
    assert spec["training"]["learning_rate"] == 3e-5
    assert spec["training"]["per_device_train_batch_size"] == 6
    assert spec["training"]["gradient_accumulation_steps"] == 2
    assert spec["training"]["eval_strategy"] == "epoch"
    assert client.fine_tuning.jobs.retrieve(job.id) == job


def test_auto_becomes_numbers(client: openai.OpenAI, file: str) -> None:
    job = client.fine_tuning.jobs.create(
        model="org/base",
        training_file=file,
        hyperparameters={"n_epochs": "auto", "batch_size": "auto"},
    )
    assert job.hyperparameters.n_epochs == 3
    assert job.hyperparameters.batch_size == 4
    assert job.hyperparameters.learning_rate_multiplier == 1.0
    other = client.fine_tuning.jobs.create(model="org/base", training_file=file)
    assert job.seed != other.seed  # drawn for each


def test_dpo_is_preference(client: openai.OpenAI, server: Server, file: str) -> None:
    job = client.fine_tuning.jobs.create(
        model="org/base",
        training_file=file,
        method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.3}}},
    )
    assert job.method is not None
    assert job.method.dpo is not None
    assert job.method.dpo.hyperparameters is not None
    assert job.method.dpo.hyperparameters.beta == 0.3
    spec = server.client.get(f"/v1/jobs/{job.id}").json()["spec"]
    assert spec["task"]["type"] == "preference"
    assert spec["task"]["beta"] == 0.3
    assert spec["training"]["learning_rate"] == 1e-6


def test_native_sections_reach_the_spec(client: openai.OpenAI, server: Server, file: str) -> None:
    job = client.fine_tuning.jobs.create(
        model="org/base",
        training_file=file,
        extra_body={
            "task": {"type": "question-answering", "max_seq_length": 256},
            "dataset": {"columns": {"context": "passage"}},
            "training": {"learning_rate": 1e-4, "per_device_train_batch_size": 3},
            "resources": {"gpus": 0},
            "priority": 7,
        },
    )
    assert job.method is None
    assert job.hyperparameters.batch_size == 3
    spec = server.client.get(f"/v1/jobs/{job.id}").json()["spec"]
    assert spec["task"]["type"] == "question-answering"
    assert spec["dataset"]["columns"] == {"context": "passage"}
    assert spec["dataset"]["train"] == [file]
    assert spec["training"]["learning_rate"] == 1e-4
    assert (spec["resources"]["gpus"], spec["priority"]) == (0, 7)


MISSING = "file-0000000000000000"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"training_file": MISSING}, "training_file", "file"),
    ({"validation_file": MISSING}, "validation_file", "file"),
    ({"model": "/etc"}, "model", "FINETUNE_MODEL_ROOTS"),
    ({"model": "ft:a:b:c:job-0"}, "model", "no job"),
    ({"training_file": None}, "training_file", "required"),
    ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs", "1"),
    ({"hyperparameters": {"n_epochs": "many"}}, "hyperparameters.n_epochs", "must"),
    ({"hyperparameters": {"n_epoch": 1}}, "hyperparameters.n_epoch", "`n_epochs`"),
    ({"sufix": "x"}, "sufix", "`suffix`"),
    ({"suffix": "x" * 65}, "suffix", "64"),
    ({"seed": -1}, "seed", "0"),
    ({"method": {"type": "reinforcement"}}, "method.type", "not offered"),
    ({"method": {"type": "dpo"}, "task": "chat"}, "method.type", "task"),
    ({"integrations": [{"type": "wandb", "wandb": {}}]}, "integrations.0.type", "Leave it out"),
    ({"dataset": {"source": "hub", "name": "org/data"}}, "training_file", "`dataset.source`"),
    ({"seed": 1, "training": {"seed": 2}}, "seed", "training.seed"),
    ({"metadata": {"a b": "x"}}, "metadata.a b", "letters"),
    ({"model": "gpt-4o-mini-2024-07-18"}, "model", "weights of this model"),
    ({"model": "ft:gpt-3.5-turbo:org::abc"}, "model", "weights of this model"),
    ({"training": {"learning_rat": 1}}, "training.learning_rat", "learning_rate"),
    (
        {
            "hyperparameters": {"learning_rate_multiplier": 2},
            "training": {"learning_rate": 1e-5},
        },
        "hyperparameters.learning_rate_multiplier",
        "training.learning_rate",
    ),
]


def test_errors_name_the_parameter(client: openai.OpenAI, file: str) -> None:
    for body, param, says in REFUSED:
        with pytest.raises(openai.BadRequestError) as raised:
            client.fine_tuning.jobs.create(model="org/base", training_file=file, extra_body=body)
        assert raised.value.param == param, body
        assert says in raised.value.message
    assert not client.fine_tuning.jobs.list().data


def test_no_body_breaks_it(server: Server) -> None:
    large = {"model": "a", "training_file": "b", "metadata": {str(n): "x" * 600 for n in range(90)}}
    bodies: list[Any] = [[], 3, "x", {"model": 3}, {"model": {"job": []}}, large]
    for body in bodies:
        answer = server.client.post("/v1/fine_tuning/jobs", json=body)
        assert answer.status_code == 400, body
        assert set(answer.json()) == {"error"}
        assert len(answer.content) < 10_000


def test_any_job_is_listed(client: openai.OpenAI, server: Server, file: str) -> None:
    ids = [add_job(server.database), add_job(server.database, spec=CHAT, metadata_={"a": "b"})]
    ids.append(client.fine_tuning.jobs.create(model="org/base", training_file=file).id)
    page = client.fine_tuning.jobs.list(limit=2)
    assert [job.id for job in page.data] == ids[:0:-1]
    assert page.has_more is True
    assert [job.id for job in client.fine_tuning.jobs.list(limit=2)] == ids[::-1]
    squad = strict(client.fine_tuning.jobs.retrieve(ids[0]), FineTuningJob)
    assert squad["method"] is None
    assert squad["training_file"] == "org/data"
    assert [job.id for job in client.fine_tuning.jobs.list(metadata={"a": "b"})] == ids[1:2]
    assert client.fine_tuning.jobs.list(metadata={"a": ""}).data == []
    without = server.client.get("/v1/fine_tuning/jobs?metadata=null").json()["data"]
    assert [job["id"] for job in without] == [ids[2], ids[0]]
    assert server.client.get("/v1/fine_tuning/jobs?metadat[a]=x").status_code == 400


# A query, and the parameter that is wrong in it.
FILTERS: list[tuple[dict[str, str], str | None]] = [
    ({"metadata[": "x"}, "metadata["),
    ({"metadata": "x"}, "metadata"),
    ({"metadata[a]b": "x"}, "metadata[a]b"),
    ({"metadata[a]": "x\0"}, "metadata[a]"),
    ({f"metadata[{'k' * 64}]": "v" * 512}, None),
    ({f"metadata[{'k' * 65}]": "v"}, f"metadata[{'k' * 65}]"),
    ({"metadata[a]": "v" * 513}, "metadata[a]"),
    ({f"metadata[{number}]": "v" for number in range(16)}, None),
    ({f"metadata[{number}]": "v" for number in range(17)}, "metadata"),
    ({"metadata": "null", "metadata[a]": "b"}, "metadata"),
]


@pytest.mark.parametrize(("query", "param"), FILTERS)
def test_which_labels_select_jobs(
    shared_client: httpx.Client, query: dict[str, str], param: str | None
) -> None:
    answer = shared_client.get("/v1/fine_tuning/jobs", params=query)
    if param is None:
        assert answer.json()["data"] == []
        return
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "type": "invalid_request_error",
        "code": "invalid_request",
        "param": param,
        "message": f"Invalid request: 1 error: query.{param}: must be `metadata[key]=value`, at "
        "most 16 times, or only `metadata=null`",
    }


def test_no_more_faults_are_listed_than_labels_are_allowed(shared_client: httpx.Client) -> None:
    wrong = {f"metadata[{number}": "x" for number in range(17)}
    answer = shared_client.get("/v1/fine_tuning/jobs", params=wrong)
    assert answer.json()["error"]["message"].startswith("Invalid request: 16 errors: ")


def test_the_life_of_a_job(client: openai.OpenAI, file: str) -> None:
    job = client.fine_tuning.jobs.create(model="org/base", training_file=file)
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"  # type: ignore[comparison-overlap]
    assert client.fine_tuning.jobs.resume(job.id).status == "validating_files"
    cancelled = client.fine_tuning.jobs.cancel(job.id)
    assert (cancelled.status, cancelled.error) == ("cancelled", None)
    assert cancelled.finished_at is not None
    with pytest.raises(openai.ConflictError) as raised:
        client.fine_tuning.jobs.cancel(job.id)
    assert raised.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.retrieve("job-0")


def test_a_repeated_cancel_is_answered_as_the_first(client: openai.OpenAI, file: str) -> None:
    job = client.fine_tuning.jobs.create(model="org/base", training_file=file)
    cancelled = client.fine_tuning.jobs.cancel(job.id)
    repeat = {"x-stainless-retry-count": "1"}
    assert client.fine_tuning.jobs.cancel(job.id, extra_headers=repeat) == cancelled


STATUSES = [
    ("queued", "prepare", "validating_files"),
    ("running", "prepare", "validating_files"),
    ("queued", "train", "queued"),
    ("running", "train", "running"),
    ("running", "publish", "running"),
    ("pausing", "train", "running"),
    ("paused", "prepare", "paused"),
    ("cancelling", "train", "cancelled"),
    ("cancelled", "train", "cancelled"),
    ("succeeded", "publish", "succeeded"),
    ("failed", "prepare", "failed"),
]


def test_statuses(client: openai.OpenAI, server: Server) -> None:
    for state, stage, status in STATUSES:
        job_id = add_job(server.database, spec=CHAT, state=state, stage=stage)
        assert client.fine_tuning.jobs.retrieve(job_id).status == status, (state, stage)


def test_a_failure_says_what_to_do(client: openai.OpenAI, server: Server) -> None:
    failure = {
        "code": "unreadable_row",
        "message": "Line 3 is not JSON",
        "retryable": False,
        "action": "Fix the rows.",
    }
    job_id = add_job(server.database, spec=CHAT, state="failed", failure=failure, ended_at=START)
    job = strict(client.fine_tuning.jobs.retrieve(job_id), FineTuningJob)
    assert job["error"] == {
        "code": "unreadable_row",
        "message": "Line 3 is not JSON. Fix the rows.",
        "param": "training_file",
    }
    assert job["finished_at"] == int(START.timestamp())


def test_native_jobs_of_every_kind_have_the_shape(client: openai.OpenAI, server: Server) -> None:
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("*.yaml"))]
    given = [yaml.safe_load(re.sub(r"\./[\w./-]+", "file-1", text)) for text in texts]
    specs = [each.get("job", each) for each in given]  # of a search: its template
    specs.append(
        {**CHAT, "dataset": {**CHAT["dataset"], "validation": {"a": "test", "b": "more[:9]"}}}
    )
    ids = [add_job(server.database, spec=spec) for spec in specs]
    listed = client.fine_tuning.jobs.with_raw_response.list(limit=100)
    page = json.loads(listed.http_response.content)
    require_exact(page, SyncCursorPage[FineTuningJob])
    assert [job["id"] for job in page["data"]] == ids[::-1]


def test_a_model_is_listed_trained_further_and_deleted(
    client: openai.OpenAI, server: Server, file: str
) -> None:
    job_id = trained(server)
    name = client.fine_tuning.jobs.retrieve(job_id).fine_tuned_model
    assert name == f"ft:base:default:support:{job_id}"
    (listed,) = client.models.list().data
    assert strict(listed, Model) == {
        "id": name,
        "object": "model",
        "created": int(START.timestamp()),
        "owned_by": "default",
        "shutdown_date": None,
    }
    assert client.models.retrieve(name) == listed
    further = client.fine_tuning.jobs.create(model=name, training_file=file, suffix="more")
    assert further.model == name
    spec = server.client.get(f"/v1/jobs/{further.id}").json()["spec"]
    assert spec["model"]["job"] == job_id
    step = client.fine_tuning.jobs.create(model=f"{name}:ckpt-step-20", training_file=file)
    assert step.model == f"{name}:ckpt-step-20"
    with pytest.raises(openai.ConflictError):  # they need it
        client.models.delete(name)
    for job in (further, step):
        client.fine_tuning.jobs.cancel(job.id)
    deleted = strict(client.models.delete(name), ModelDeleted)
    assert deleted == {"id": name, "object": "model", "deleted": True}
    assert client.models.list().data == []
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve(name)
    kept = client.fine_tuning.jobs.retrieve(job_id)
    assert (kept.status, kept.fine_tuned_model) == ("succeeded", None)


def test_what_is_not_offered_says_why(client: openai.OpenAI) -> None:
    grader: Any = {"type": "string_check", "name": "x", "input": "a", "reference": "b"}
    for ask in (
        lambda: client.fine_tuning.alpha.graders.validate(grader=grader),
        lambda: client.fine_tuning.alpha.graders.run(grader=grader, model_sample="x"),
        lambda: client.fine_tuning.checkpoints.permissions.list("ft:a:b:c:job-1"),
        lambda: client.fine_tuning.checkpoints.permissions.delete(
            "p", fine_tuned_model_checkpoint="ft:a:b:c:job-1"
        ),
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            ask()
        assert raised.value.code == "not_offered"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("org/base")
    assert missing.value.code == "model_not_found"
