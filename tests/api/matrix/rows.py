"""The rows of the matrix: for each route of the OpenAPI document the ways to ask it.

`$name` stands for something of the owner (world.py). A new route needs a row here: say with what it
is asked, and what its owner is answered.
"""

from dataclasses import dataclass
from typing import Any, Final

from service.contract.roles import Permission
from tests.api.factories import spec

OPEN: Final = "open"
"""Needs no key."""
ANY_KEY: Final = None


@dataclass(frozen=True)
class Way:
    path: str
    ok: int = 200
    """What whoever may do it is answered."""
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    form: bool = False


@dataclass(frozen=True)
class Row:
    needs: Permission | str | None
    ways: tuple[Way, ...]
    of_all_projects: bool = False
    """An operator's matter, which no project's id or name is part of."""


def _gets(template: str, *jobs: str, ok: int = 200) -> tuple[Way, ...]:
    return tuple(Way(template.replace("$job", f"${job}"), ok) for job in jobs)


_JOBS: Final = ("done", "queued", "failed", "paused")


def _uploaded(**splits: Any) -> dict[str, Any]:
    return spec(dataset={"source": "upload", **splits})


def _search(job: dict[str, Any]) -> dict[str, Any]:
    """A search of this template, which trains and is evaluated. What varies may differ from the job
    that a training continues."""
    dataset = job["dataset"]
    if "validation" not in dataset:
        dataset = dataset | {"validation_split_percentage": 10}
    return {"job": job | {"dataset": dataset}, "space": {"training.logging_steps": [5, 10]}}


_REFERENCES: Final[tuple[dict[str, Any], ...]] = (
    _uploaded(train="$file"),
    _uploaded(train=["$free_file", "$file"]),
    _uploaded(train="$file", validation="$free_file"),
    _uploaded(train="$file", validation={"other": "$free_file"}),
    _uploaded(train="$file", test="$free_file"),
    spec(model={"job": "$done"}),
    spec(model={"job": "$done", "checkpoint": "best"}),
    spec(model={"job": "$done", "checkpoint": "last"}),
    spec(model={"job": "$done", "checkpoint": 10}),
    _uploaded(train="$file") | {"training": {"resume_from": {"job": "$done"}}},
    _uploaded(train="$file")
    | {"training": {"resume_from": {"job": "$done", "checkpoint": "best"}}},
    spec(
        mode="evaluate",
        model={"job": "$done"},
        dataset={"source": "hub", "name": "org/data", "validation": "validation"},
    ),
)
_SEARCHED: Final = tuple(_search(job) for job in _REFERENCES if "mode" not in job)
_PLAIN: Final = (spec(), spec(tracking={"experiment_name": "projects/$project_name/x"}))
_PATCHES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"name": "again"},
    {"dataset": {"train": ["$free_file"]}},
    {"model": {"name_or_path": None, "job": "$done"}},
)
_LIST: Final = (
    "",
    "?limit=1",
    "?limit=100",
    "?after=$done",
    "?after=$queued",
    "?after=job-ffffffffffffffffffff",
    "?state=succeeded",
    "?state=queued&state=failed",
    "?task=question-answering",
    "?name=$job_name",
    "?metadata=team:$label",
    "?metadata=team:$label&state=succeeded",
    "?id_prefix=$done",
    "?id_prefix=job-1",
    "?created_after=2020-01-01T00:00:00Z",
    "?created_before=2100-01-01T00:00:00Z&name=$job_name",
    "?search_id=$search",
)
_SEARCHES: Final = (
    "",
    "?limit=1",
    "?after=$search",
    "?after=search-ffffffffffffffff",
    "?state=succeeded",
    "?task=question-answering",
    "?name=$search_name",
)
_FILES: Final = (
    "",
    "?limit=1",
    "?after=$file",
    "?order=asc",
    "?order=asc&after=$file",
    "?purpose=fine-tune",
    "?id_prefix=$file",
)
_SEARCH: Final = "/v1/searches/$search"
_READ, _WRITE = Permission.JOBS_READ, Permission.JOBS_WRITE
_JOB: Final = "/v1/jobs/$job"
_DONE: Final = "/v1/jobs/$done"
_STEP: Final = f"{_DONE}/checkpoints/10"
_FINE_TUNING: Final = "/v1/fine_tuning/jobs"
_PERMISSIONS: Final = "/v1/fine_tuning/checkpoints/ft:a:b:c:$done:ckpt-step-10/permissions"
_PROJECTS: Final = ("/v1/projects/$project", "/v1/projects/$project_name")


def _posts(path: str, bodies: tuple[dict[str, Any], ...], ok: int) -> tuple[Way, ...]:
    return tuple(Way(path, ok, body) for body in bodies)


def _of_project(rest: str, *, ok: int = 200, body: Any = None) -> tuple[Way, ...]:
    return tuple(Way(f"{path}{rest}", ok, body) for path in _PROJECTS)


ROWS: Final[dict[str, Row]] = {
    # ---- jobs
    "GET /v1/jobs": Row(_READ, tuple(Way(f"/v1/jobs{query}") for query in _LIST)),
    "POST /v1/jobs": Row(
        _WRITE,
        (
            *_posts("/v1/jobs", (*_REFERENCES, *_PLAIN), 201),
            Way("/v1/jobs", 422, spec(), (("Idempotency-Key", "$once"),)),
            Way("/v1/jobs", 422, _uploaded(train="$file"), (("Idempotency-Key", "$once"),)),
        ),
    ),
    "POST /v1/jobs/validate": Row(
        _READ,
        (
            *_posts("/v1/jobs/validate", (*_REFERENCES, *_PLAIN), 200),
            Way("/v1/jobs/validate?pending_file=$file", 200, _uploaded(train="$file")),
        ),
    ),
    # One way: no worker makes them here, and a project may have four unfinished ones.
    "POST /v1/jobs/preview": Row(
        _WRITE,
        (
            Way(
                "/v1/jobs/preview?wait=0",
                202,
                _uploaded(train="$file") | {"model": {"job": "$done"}},
            ),
        ),
    ),
    "GET /v1/previews/{preview_id}": Row(_READ, (Way("/v1/previews/$preview"),)),
    # One way: a project may have sixteen unanswered ones.
    "POST /v1/jobs/{job_id}/predict": Row(
        _WRITE,
        (Way("/v1/jobs/$done/predict?wait=0", 202, {"rows": [{"question": "a", "context": "b"}]}),),
    ),
    "GET /v1/predictions/{prediction_id}": Row(_READ, (Way("/v1/predictions/$prediction"),)),
    # The owner's model answers questions about rows alone.
    "POST /v1/chat/completions": Row(
        _WRITE,
        (
            Way(
                "/v1/chat/completions",
                400,
                {"model": "$done", "messages": [{"role": "user", "content": "a"}]},
            ),
        ),
    ),
    "POST /v1/completions": Row(
        _WRITE, (Way("/v1/completions", 400, {"model": "$done", "prompt": "a"}),)
    ),
    "GET /v1/jobs/{job_id}": Row(_READ, _gets(_JOB, *_JOBS, "cancelled")),
    "DELETE /v1/jobs/{job_id}": Row(
        _WRITE, (*_gets(_JOB, "done", "failed", "cancelled"), *_gets(_JOB, "queued", ok=409))
    ),
    "POST /v1/jobs/{job_id}/cancel": Row(
        _WRITE,
        (*_gets(f"{_JOB}/cancel", "queued", "paused"), *_gets(f"{_JOB}/cancel", "done", ok=409)),
    ),
    "POST /v1/jobs/{job_id}/pause": Row(
        _WRITE, (*_gets(f"{_JOB}/pause", "queued"), *_gets(f"{_JOB}/pause", "done", ok=409))
    ),
    "POST /v1/jobs/{job_id}/resume": Row(
        _WRITE, (*_gets(f"{_JOB}/resume", "paused"), *_gets(f"{_JOB}/resume", "done", ok=409))
    ),
    "POST /v1/jobs/{job_id}/retry": Row(
        _WRITE,
        (
            *_gets(f"{_JOB}/retry", "failed", "cancelled"),
            *_gets(f"{_JOB}/retry", "queued", ok=409),
        ),
    ),
    "POST /v1/jobs/{job_id}/clone": Row(
        _WRITE,
        (
            *_posts(f"{_DONE}/clone", _PATCHES, 201),
            *_posts("/v1/jobs/$queued/clone", _PATCHES[:2], 201),
        ),
    ),
    "POST /v1/jobs/{job_id}/publish": Row(
        _WRITE,
        (
            # Only the default project has the operator's token.
            Way(f"{_DONE}/publish", 422, {"model_id": "org/pushed"}),
            Way("/v1/jobs/$queued/publish", 422, {"model_id": "org/pushed"}),
        ),
    ),
    "GET /v1/jobs/{job_id}/artifacts": Row(
        _READ,
        (
            *_gets(f"{_JOB}/artifacts", *_JOBS),
            Way(f"{_DONE}/artifacts?after=a"),
            Way(f"{_DONE}/artifacts?limit=1"),
        ),
    ),
    "GET /v1/jobs/{job_id}/artifacts/{path}": Row(
        _READ,
        (
            Way(f"{_DONE}/artifacts/model/model.bin"),
            Way(f"{_DONE}/artifacts/model/model.bin", 206, None, (("Range", "bytes=0-3"),)),
            Way(f"{_DONE}/artifacts/model/model.bin", 304, None, (("If-None-Match", "a" * 64),)),
            Way(f"{_DONE}/artifacts/nothing", 404),
        ),
    ),
    "GET /v1/jobs/{job_id}/model.tar": Row(
        _READ, (Way(f"{_DONE}/model.tar"), Way("/v1/jobs/$queued/model.tar", 404))
    ),
    "GET /v1/jobs/{job_id}/events": Row(
        _READ, (*_gets(f"{_JOB}/events", *_JOBS), Way(f"{_DONE}/events?after=0&limit=1"))
    ),
    "GET /v1/jobs/{job_id}/metrics": Row(
        _READ, (*_gets(f"{_JOB}/metrics", *_JOBS), Way(f"{_DONE}/metrics?kind=eval"))
    ),
    "GET /v1/jobs/{job_id}/checkpoints": Row(_READ, _gets(f"{_JOB}/checkpoints", *_JOBS)),
    "GET /v1/jobs/{job_id}/logs": Row(
        _READ, (*_gets(f"{_JOB}/logs", *_JOBS), Way(f"{_DONE}/logs?offset=3"))
    ),
    "GET /v1/jobs/{job_id}/events/stream": Row(
        _READ, (*_gets(f"{_JOB}/events/stream", "done", "failed"),)
    ),
    "GET /v1/jobs/{job_id}/logs/stream": Row(
        _READ, (*_gets(f"{_JOB}/logs/stream", "done", "failed"),)
    ),
    "GET /v1/jobs/{job_id}/checkpoints/{step}": Row(
        _READ, (Way(_STEP), Way(f"{_DONE}/checkpoints/11", 404))
    ),
    "GET /v1/jobs/{job_id}/checkpoints/{step}/files/{path}": Row(
        _READ, (Way(f"{_STEP}/files/weights"), Way(f"{_STEP}/files/manifest.json"))
    ),
    "GET /v1/jobs/{job_id}/checkpoints/{step}/archive": Row(_READ, (Way(f"{_STEP}/archive"),)),
    "POST /v1/jobs/{job_id}/checkpoints/{step}/promote": Row(_WRITE, (Way(f"{_STEP}/promote"),)),
    # ---- searches
    "GET /v1/searches": Row(_READ, tuple(Way(f"/v1/searches{query}") for query in _SEARCHES)),
    "POST /v1/searches": Row(
        _WRITE,
        (
            *_posts("/v1/searches", _SEARCHED, 201),
            Way("/v1/searches", 422, _search(spec()), (("Idempotency-Key", "$once"),)),
        ),
    ),
    "POST /v1/searches/validate": Row(_READ, _posts("/v1/searches/validate", _SEARCHED, 200)),
    "GET /v1/searches/{search_id}": Row(_READ, (Way(_SEARCH), Way("/v1/searches/$running_search"))),
    "GET /v1/searches/{search_id}/trials": Row(
        _READ,
        (
            Way(f"{_SEARCH}/trials"),
            Way(f"{_SEARCH}/trials?after=0&limit=1"),
            Way(f"{_SEARCH}/trials?state=complete"),
        ),
    ),
    "GET /v1/searches/{search_id}/best": Row(_READ, (Way(f"{_SEARCH}/best"),)),
    "GET /v1/searches/{search_id}/plots/{name}": Row(
        _READ,
        (
            Way(f"{_SEARCH}/plots/history"),
            Way(f"{_SEARCH}/plots/history?format=html"),
            Way(f"{_SEARCH}/plots/histroy", 404),
            Way("/v1/searches/$running_search/plots/history", 409),
        ),
    ),
    "POST /v1/searches/{search_id}/cancel": Row(
        _WRITE,
        (Way("/v1/searches/$running_search/cancel"), Way(f"{_SEARCH}/cancel", 409)),
    ),
    "POST /v1/searches/{search_id}/pause": Row(
        _WRITE,
        (Way("/v1/searches/$running_search/pause"), Way(f"{_SEARCH}/pause", 409)),
    ),
    "POST /v1/searches/{search_id}/resume": Row(
        _WRITE,
        (Way("/v1/searches/$running_search/resume"), Way(f"{_SEARCH}/resume", 409)),
    ),
    "POST /v1/searches/{search_id}/extend": Row(
        _WRITE,
        (
            Way("/v1/searches/$running_search/extend", 200, {"max_trials": 30}),
            Way(f"{_SEARCH}/extend", 200, {"max_trials": 30}),
            Way(f"{_SEARCH}/extend", 409, {"max_trials": 1}),
        ),
    ),
    "DELETE /v1/searches/{search_id}": Row(
        _WRITE, (Way(_SEARCH), Way("/v1/searches/$running_search", 409))
    ),
    # ---- files
    "GET /v1/files": Row(
        Permission.FILES_READ, tuple(Way(f"/v1/files{query}") for query in _FILES)
    ),
    "POST /v1/files": Row(Permission.FILES_WRITE, (Way("/v1/files", form=True),)),
    "GET /v1/files/{file_id}": Row(
        Permission.FILES_READ, (Way("/v1/files/$file"), Way("/v1/files/$free_file"))
    ),
    "GET /v1/files/{file_id}/content": Row(
        Permission.FILES_READ,
        (
            Way("/v1/files/$file/content"),
            Way("/v1/files/$file/content", 206, None, (("Range", "bytes=0-3"),)),
        ),
    ),
    "DELETE /v1/files/{file_id}": Row(
        Permission.FILES_WRITE, (Way("/v1/files/$free_file"), Way("/v1/files/$file", 409))
    ),
    # The upload is cancelled, so that no call uses it up.
    "POST /v1/uploads": Row(
        Permission.FILES_WRITE,
        (
            Way(
                "/v1/uploads",
                body={
                    "bytes": 1,
                    "filename": "own.jsonl",
                    "mime_type": "text/jsonl",
                    "purpose": "fine-tune",
                },
            ),
        ),
    ),
    "POST /v1/uploads/{upload_id}/parts": Row(
        Permission.FILES_WRITE, (Way("/v1/uploads/$upload/parts", 409, form=True),)
    ),
    "POST /v1/uploads/{upload_id}/complete": Row(
        Permission.FILES_WRITE,
        (Way("/v1/uploads/$upload/complete", 409, {"part_ids": ["part-0"]}),),
    ),
    "POST /v1/uploads/{upload_id}/cancel": Row(
        Permission.FILES_WRITE, (Way("/v1/uploads/$upload/cancel"),)
    ),
    # The parameter is wrong, so that no check starts; whose file it is is decided before.
    "POST /v1/files/{file_id}/check": Row(
        Permission.FILES_WRITE,
        (Way("/v1/files/$file/check?task=question-answering&columns=no", 422),),
    ),
    # ---- owners
    "GET /v1/me": Row(ANY_KEY, (Way("/v1/me"),)),
    "GET /v1/projects": Row(ANY_KEY, (Way("/v1/projects"),)),
    "POST /v1/projects": Row(
        Permission.PROJECTS_ADMIN, (Way("/v1/projects", 409, {"name": "$project_name"}),)
    ),
    "GET /v1/projects/{project}": Row(ANY_KEY, _of_project("")),
    "PATCH /v1/projects/{project}": Row(
        Permission.PROJECTS_ADMIN,
        (
            *_of_project("", body={"weight": 2}),
            *_of_project("", body={"name": "$project_name"}),
            *_of_project("", ok=409, body={"name": "default"}),
        ),
    ),
    "GET /v1/projects/{project}/members": Row(Permission.KEYS_ADMIN, _of_project("/members")),
    "POST /v1/projects/{project}/members": Row(
        Permission.KEYS_ADMIN,
        _of_project("/members", ok=409, body={"name": "$member_name", "role": "viewer"}),
    ),
    "PATCH /v1/projects/{project}/members/{member}": Row(
        Permission.KEYS_ADMIN,
        (
            *_of_project("/members/$member", body={"role": "viewer"}),
            *_of_project("/members/$member_name", body={"role": "viewer"}),
        ),
    ),
    "DELETE /v1/projects/{project}/members/{member}": Row(
        Permission.KEYS_ADMIN,
        (*_of_project("/members/$member"), *_of_project("/members/$member_name")),
    ),
    "GET /v1/projects/{project}/keys": Row(Permission.KEYS_ADMIN, _of_project("/keys")),
    "POST /v1/projects/{project}/keys": Row(
        Permission.KEYS_ADMIN,
        (
            *_of_project("/keys", ok=201, body={"name": "new", "role": "viewer"}),
            *_of_project("/keys", ok=201, body={"name": "new", "member": "$member"}),
        ),
    ),
    "DELETE /v1/projects/{project}/keys/{key_id}": Row(
        Permission.KEYS_ADMIN, _of_project("/keys/$key")
    ),
    "POST /v1/projects/{project}/keys/{key_id}/rotate": Row(
        Permission.KEYS_ADMIN, _of_project("/keys/$key/rotate", ok=201)
    ),
    "GET /v1/secrets": Row(Permission.SECRETS_READ, (Way("/v1/secrets"),)),
    "PUT /v1/secrets/{name}": Row(
        Permission.SECRETS_WRITE, (Way("/v1/secrets/mine", 200, {"value": "x"}),)
    ),
    "DELETE /v1/secrets/{name}": Row(Permission.SECRETS_WRITE, (Way("/v1/secrets/$secret_name"),)),
    # ---- webhooks
    "GET /v1/webhooks": Row(Permission.WEBHOOKS_READ, (Way("/v1/webhooks"),)),
    # The URL is wrong: a project may have only so many.
    "POST /v1/webhooks": Row(
        Permission.WEBHOOKS_WRITE, (Way("/v1/webhooks", 422, {"url": "http://example.com/"}),)
    ),
    "GET /v1/webhooks/{webhook_id}": Row(Permission.WEBHOOKS_READ, (Way("/v1/webhooks/$webhook"),)),
    "PATCH /v1/webhooks/{webhook_id}": Row(
        Permission.WEBHOOKS_WRITE,
        (
            Way("/v1/webhooks/$webhook", 200, {"events": ["job.failed"]}),
            Way("/v1/webhooks/$webhook", 200, {"enabled": True}),
        ),
    ),
    "DELETE /v1/webhooks/{webhook_id}": Row(
        Permission.WEBHOOKS_WRITE, (Way("/v1/webhooks/$webhook"),)
    ),
    "POST /v1/webhooks/{webhook_id}/rotate": Row(
        Permission.WEBHOOKS_WRITE, (Way("/v1/webhooks/$webhook/rotate"),)
    ),
    "POST /v1/webhooks/{webhook_id}/test": Row(
        Permission.WEBHOOKS_WRITE, (Way("/v1/webhooks/$webhook/test", 202),)
    ),
    "GET /v1/webhooks/{webhook_id}/deliveries": Row(
        Permission.WEBHOOKS_READ,
        (
            Way("/v1/webhooks/$webhook/deliveries"),
            Way("/v1/webhooks/$webhook/deliveries?after=$delivery&limit=1"),
            Way("/v1/webhooks/$webhook/deliveries?state=delivered"),
        ),
    ),
    "POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/replay": Row(
        Permission.WEBHOOKS_WRITE, (Way("/v1/webhooks/$webhook/deliveries/$delivery/replay", 202),)
    ),
    "GET /v1/jobs/{job_id}/deliveries": Row(
        Permission.WEBHOOKS_READ, (*_gets(f"{_JOB}/deliveries", *_JOBS),)
    ),
    "POST /v1/jobs/{job_id}/deliveries/{delivery_id}/replay": Row(
        Permission.WEBHOOKS_WRITE, (Way(f"{_DONE}/deliveries/$of_spec/replay", 202),)
    ),
    "GET /v1/usage": Row(
        _READ,
        (
            Way("/v1/usage"),
            Way("/v1/usage?project=$project"),
            Way("/v1/usage?project=$project_name"),
            Way("/v1/usage?from=2020-01-01&to=2100-01-01"),
        ),
    ),
    "GET /v1/audit": Row(
        Permission.AUDIT_READ,
        (
            Way("/v1/audit"),
            Way("/v1/audit?limit=1000"),
            Way("/v1/audit?target=$done"),
            Way("/v1/audit?key_id=$key"),
            Way("/v1/audit?action=create_job&limit=1"),
        ),
    ),
    # ---- OpenAI's API
    "GET /v1/fine_tuning/jobs": Row(
        _READ,
        (
            Way(_FINE_TUNING),
            Way(f"{_FINE_TUNING}?limit=1"),
            Way(f"{_FINE_TUNING}?after=$done"),
            Way(f"{_FINE_TUNING}?metadata[team]=$label"),
            Way(f"{_FINE_TUNING}?metadata=null"),
        ),
    ),
    "POST /v1/fine_tuning/jobs": Row(
        _WRITE,
        (
            Way(_FINE_TUNING, 200, {"model": "org/model", "training_file": "$file"}),
            Way(
                _FINE_TUNING,
                200,
                {"model": "org/m", "training_file": "$free_file", "validation_file": "$file"},
            ),
            Way(_FINE_TUNING, 200, {"model": "ft:a:b:c:$done", "training_file": "$free_file"}),
            Way(
                _FINE_TUNING,
                200,
                {"model": "ft:a:b:c:$done:ckpt-step-10", "training_file": "$free_file"},
            ),
            Way(
                _FINE_TUNING,
                400,
                {"model": "org/model", "training_file": "$file"},
                (("Idempotency-Key", "$once"),),
            ),
        ),
    ),
    "GET /v1/fine_tuning/jobs/{job_id}": Row(_READ, _gets(f"{_FINE_TUNING}/$job", *_JOBS)),
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": Row(
        _WRITE, (Way(f"{_FINE_TUNING}/$queued/cancel"), Way(f"{_FINE_TUNING}/$done/cancel", 409))
    ),
    "POST /v1/fine_tuning/jobs/{job_id}/pause": Row(
        _WRITE, (Way(f"{_FINE_TUNING}/$queued/pause"), Way(f"{_FINE_TUNING}/$done/pause", 409))
    ),
    "POST /v1/fine_tuning/jobs/{job_id}/resume": Row(
        _WRITE, (Way(f"{_FINE_TUNING}/$paused/resume"), Way(f"{_FINE_TUNING}/$done/resume", 409))
    ),
    "GET /v1/fine_tuning/jobs/{job_id}/events": Row(
        _READ, (*_gets(f"{_FINE_TUNING}/$job/events", *_JOBS),)
    ),
    "GET /v1/fine_tuning/jobs/{job_id}/checkpoints": Row(
        _READ, (*_gets(f"{_FINE_TUNING}/$job/checkpoints", *_JOBS),)
    ),
    "GET /v1/models": Row(_READ, (Way("/v1/models"),)),
    "GET /v1/models/{model}": Row(
        _READ,
        (
            Way("/v1/models/ft:a:b:c:$done"),
            Way("/v1/models/ft:a:b:c:$done:ckpt-step-10"),
            Way("/v1/models/ft:a:b:c:$queued", 404),
        ),
    ),
    "DELETE /v1/models/{model}": Row(
        _WRITE,
        (
            Way("/v1/models/ft:a:b:c:$done"),
            Way("/v1/models/ft:a:b:c:$failed", 404),
            Way("/v1/models/ft:a:b:c:$done:ckpt-step-10", 400),
        ),
    ),
    "POST /v1/fine_tuning/alpha/graders/validate": Row(
        _READ, (Way("/v1/fine_tuning/alpha/graders/validate", 400, {}),)
    ),
    "POST /v1/fine_tuning/alpha/graders/run": Row(
        _READ, (Way("/v1/fine_tuning/alpha/graders/run", 400, {}),)
    ),
    "GET /v1/fine_tuning/checkpoints/{name}/permissions": Row(_READ, (Way(_PERMISSIONS, 400),)),
    "POST /v1/fine_tuning/checkpoints/{name}/permissions": Row(
        _WRITE, (Way(_PERMISSIONS, 400, {"project_ids": ["$project"]}),)
    ),
    "DELETE /v1/fine_tuning/checkpoints/{name}/permissions/{permission_id}": Row(
        _WRITE, (Way(f"{_PERMISSIONS}/x", 400),)
    ),
    # ---- of all projects
    "GET /v1/tasks": Row(ANY_KEY, (Way("/v1/tasks"),)),
    "GET /v1/workers": Row(_READ, (Way("/v1/workers"),)),
    "GET /metrics": Row(Permission.METRICS_READ, (Way("/metrics"),), of_all_projects=True),
    "GET /health/live": Row(OPEN, (Way("/health/live"),)),
    "GET /health/ready": Row(OPEN, (Way("/health/ready", 503),)),
}
