"""The whole life of fine-tuning jobs, on a service with a worker.

The arguments after the release: the model, its name in names of fine-tuned models, and `short` or
`whole`.
"""

import io
import json
import sys
import time
from typing import Any

import openai

from tests.openai_clients.scripts import tools
from tests.openai_clients.scripts.client import connected, exact, refused
from tests.openai_clients.scripts.completions import check_model
from tests.openai_clients.scripts.webhooks import received_events

ENDED = ("succeeded", "failed", "cancelled")
QUESTION = {"role": "user", "content": "what does the report say?"}
SECONDS = 180


def main() -> None:
    client = connected(max_retries=0)
    model, base, extent = sys.argv[2:]
    rows = io.BytesIO(lines(chat_row(number) for number in range(24)))
    training = client.files.create(file=("chat.jsonl", rows), purpose="fine-tune")
    with received_events() as events:
        done = check_supervised(client, model, base, training.id)
        events.require("fine_tuning.job.succeeded", done.id)
        failed = check_failure(client, model)
        events.require("fine_tuning.job.failed", failed)
        if extent == "whole":
            cancelled = check_pause_and_cancel(client, model, training.id)
            events.require("fine_tuning.job.cancelled", cancelled)
        events.require_verified()
    check_refusals(client, model, training.id)
    check_model(client, done.fine_tuned_model)
    check_tools(client, done.id)
    if extent == "whole":
        check_training_further(client, done.id, training.id)
        check_dpo(client, model)
    check_removal(client, done.fine_tuned_model)


def lines(rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def chat_row(number: int) -> dict[str, Any]:
    answer = {"role": "assistant", "content": f"that number {number} was read by all"}
    return {"messages": [QUESTION, answer]}


def pair(number: int) -> dict[str, Any]:
    return {
        "input": {"messages": [QUESTION], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [{"role": "assistant", "content": f"number {number}"}],
        "non_preferred_output": [{"role": "assistant", "content": "nothing"}],
    }


def ended(client: openai.OpenAI, job: str) -> Any:
    """As most scripts wait: by asking again and again."""
    return until(client, job, *ENDED)


def until(client: openai.OpenAI, job: str, *statuses: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = exact(client.fine_tuning.jobs, "retrieve", job)
        if found.status in statuses:
            return found
        time.sleep(0.3)
    raise TimeoutError(f"{job} is {found.status}")


def check_supervised(client: openai.OpenAI, model: str, base: str, training: str) -> Any:
    job = exact(
        client.fine_tuning.jobs,
        "create",
        model=model,
        training_file=training,
        validation_file=training,
        suffix="readers",
        seed=7,
        metadata={"team": "reports"},
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 4}},
        },
    )
    assert (job.seed, job.metadata) == (7, {"team": "reports"})
    assert job.hyperparameters.n_epochs == 2
    done = ended(client, job.id)
    assert done.status == "succeeded", done.error
    assert done.fine_tuned_model.startswith(f"ft:{base}:")
    assert done.fine_tuned_model.endswith(f":readers:{job.id}")
    assert done.trained_tokens > 0
    assert done.finished_at >= done.created_at
    listed = exact(client.fine_tuning.jobs, "list", limit=1, metadata={"team": "reports"})
    assert [each.id for each in listed.data] == [job.id]
    check_events(client, job.id)
    check_models(client, done.fine_tuned_model)
    check_checkpoints(client, job.id)
    return done


def check_events(client: openai.OpenAI, job: str) -> None:
    whole = list(client.fine_tuning.jobs.list_events(job, limit=100))
    assert {event.type for event in whole} == {"message", "metrics"}
    paged = list(exact(client.fine_tuning.jobs, "list_events", job, limit=3))
    assert [event.id for event in paged] == [event.id for event in whole]
    assert len({event.id for event in whole}) == len(whole)
    times = [event.created_at for event in whole]
    assert times == sorted(times, reverse=True)
    measured = [event.data for event in whole if event.type == "metrics"]
    assert all(isinstance(data, dict) and "step" in data for data in measured)


def check_models(client: openai.OpenAI, name: str) -> None:
    assert exact(client.models, "retrieve", name).id == name
    assert name in [model.id for model in exact(client.models, "list")]
    refused(openai.NotFoundError, lambda: client.models.retrieve("ft:none:default::job-none"))


def check_tools(client: openai.OpenAI, job: str) -> None:
    tools.check_dspy(job)
    tools.check_llama_index(client, job)
    tools.check_instructor(client)
    tools.check_wandb(client, job)


def check_removal(client: openai.OpenAI, name: str) -> None:
    assert exact(client.models, "delete", name).deleted is True
    refused(openai.NotFoundError, lambda: client.models.retrieve(name))
    refused(openai.NotFoundError, lambda: client.models.delete(name))


def check_checkpoints(client: openai.OpenAI, job: str) -> None:
    found = list(exact(client.fine_tuning.jobs.checkpoints, "list", job, limit=1))
    assert len(found) >= 1
    assert all(each.fine_tuning_job_id == job for each in found)
    assert all(
        each.fine_tuned_model_checkpoint.endswith(f":{job}:ckpt-step-{each.step_number}")
        for each in found
    )


def check_training_further(client: openai.OpenAI, job: str, training: str) -> None:
    checkpoint = client.fine_tuning.jobs.checkpoints.list(job).data[0]
    follow_up = client.fine_tuning.jobs.create(
        model=checkpoint.fine_tuned_model_checkpoint,
        training_file=training,
        hyperparameters={"n_epochs": 1},
    )
    assert ended(client, follow_up.id).status == "succeeded"


def check_dpo(client: openai.OpenAI, model: str) -> None:
    rows = io.BytesIO(lines(pair(number) for number in range(12)))
    file = client.files.create(file=("pairs.jsonl", rows), purpose="fine-tune")
    job = exact(
        client.fine_tuning.jobs,
        "create",
        model=model,
        training_file=file.id,
        method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 1}}},
    )
    assert job.method.dpo.hyperparameters.beta == 0.2
    assert ended(client, job.id).status == "succeeded"


def check_pause_and_cancel(client: openai.OpenAI, model: str, training: str) -> str:
    job = client.fine_tuning.jobs.create(
        model=model, training_file=training, hyperparameters={"n_epochs": 1000}
    )
    until(client, job.id, "running")
    exact(client.fine_tuning.jobs, "pause", job.id)
    until(client, job.id, "paused")
    exact(client.fine_tuning.jobs, "resume", job.id)
    exact(client.fine_tuning.jobs, "cancel", job.id)
    until(client, job.id, "cancelled")
    refused(openai.ConflictError, lambda: client.fine_tuning.jobs.resume(job.id))
    return job.id


def check_failure(client: openai.OpenAI, model: str) -> str:
    bad = {"messages": [{**QUESTION, "role": "customer"}]}
    rows = io.BytesIO(lines([*map(chat_row, range(12)), bad]))
    file = client.files.create(file=("bad.jsonl", rows), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model=model, training_file=file.id)
    failed = ended(client, job.id)
    assert (failed.status, failed.error.param) == ("failed", "training_file")
    assert "line 13" in failed.error.message
    assert "unrecognized_role" in failed.error.message
    messages = [event.message for event in client.fine_tuning.jobs.list_events(job.id)]
    assert any("line 13" in message for message in messages)
    return job.id


def check_refusals(client: openai.OpenAI, model: str, training: str) -> None:
    create = client.fine_tuning.jobs.create
    no_file = refused(
        openai.BadRequestError, lambda: create(model=model, training_file="file-none")
    )
    assert no_file.param == "training_file"
    method: Any = {"type": "reinforcement"}
    reinforcement = refused(
        openai.BadRequestError, lambda: create(model=model, training_file=training, method=method)
    )
    assert reinforcement.param == "method.type"
    missing = refused(openai.NotFoundError, lambda: client.fine_tuning.jobs.retrieve("job-none"))
    assert missing.status_code == 404
    grader: Any = {
        "type": "string_check",
        "name": "same",
        "input": "a",
        "reference": "a",
        "operation": "eq",
    }
    graders = client.fine_tuning.alpha.graders
    not_offered = refused(openai.BadRequestError, lambda: graders.validate(grader=grader))
    assert not_offered.code == "not_offered"


if __name__ == "__main__":
    main()
