"""Every query that serves a user takes a scope: what another project owns is out of its reach."""

import ast
from pathlib import Path

STORE = Path(__file__).resolve().parents[2] / "service" / "store"
OWNED = {
    *("JobRow", "JobLabelRow", "JobSourceRow", "AttemptRow", "EventRow", "MetricRow"),
    *(
        "CheckpointRow",
        "ArtifactRow",
        "FileRow",
        "UploadRow",
        "UploadPartRow",
        "IdempotencyRow",
        "CreateCallRow",
        "PreviewRow",
        "WebhookRow",
        "DeliveryRow",
    ),
    *("PredictionRow", "SearchRow", "SearchTrialRow", "SearchReportRow"),
}
NARROWED_BY = {"scope", "project_id", "project", "claimed"}
"""A function with such a parameter, or with an owned row, cannot reach further."""
MACHINERY = {
    *("jobs/claims.py", "jobs/endings.py", "jobs/attempt_reports.py", "files/retention.py"),
    *("scheduling/fair_queue.py", "scheduling/fair_shares.py", "scheduling/registration.py"),
    *("projects/usage.py", "projects/quotas.py", "webhooks/deliveries.py", "scope.py"),
    *("interactive/leases.py", "interactive/preview_claims.py", "interactive/prediction_claims.py"),
    *("searches/trials.py", "tracking/jobs.py", "tracking/searches.py", "tracking/removals.py"),
}
"""For workers, the reconciler and retention, which serve no user."""
COUNTS_OF_ALL = {"arrival", "_places", "Places"}
"""Places in a queue count the jobs of all projects and name none."""
ADDS = {"insert_all", "note", "record"}
"""They add rows for a job or file that was made, or locked within a scope, just before."""
RESEALS = {"seal_again"}
"""For the operator's new key, the secrets of all projects."""
OUTBOX = {
    *("due", "waits_in", "message_if_due", "mark_sent", "send_all_again", "untracked"),
    *("postpone_tracking", "move", "append_event", "messages"),
}
"""Of jobs/messages.py, jobs/state.py and previews: messages, and the one function that writes a
state of a row that is locked."""


def without_scope(source: str) -> list[str]:
    """Public functions that query an owned table and take neither a scope nor a row."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and _queries(node)
        and not _is_narrowed(node)
    ]


def _queries(function: ast.FunctionDef) -> bool:
    calls = {
        getattr(node.func, "id", getattr(node.func, "attr", ""))
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    reads = {"select", "update", "delete", "get", "get_one", "scalars", "execute", "lock"}
    return bool(names & OWNED) and bool(calls & reads)


def _is_narrowed(function: ast.FunctionDef) -> bool:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    named = {argument.arg for argument in arguments}
    typed = {
        name.id
        for argument in arguments
        if argument.annotation
        for name in ast.walk(argument.annotation)
        if isinstance(name, ast.Name)
    }
    return bool(named & NARROWED_BY or typed & OWNED)


def test_every_function_that_reads_what_is_owned_takes_a_scope() -> None:
    files = {file.relative_to(STORE).as_posix(): file for file in STORE.rglob("*.py")}
    assert files.keys() > MACHINERY
    found = {
        f"{path}: {name}"
        for path, file in files.items()
        if path not in MACHINERY
        for name in without_scope(file.read_text())
        if name not in COUNTS_OF_ALL | ADDS | RESEALS | OUTBOX
    }
    assert found == set()


def test_a_function_without_one_is_found() -> None:
    one = "def name_of(session, job_id):\n    return session.get(JobRow, job_id).name\n"
    assert without_scope(one) == ["name_of"]
    assert without_scope(one.replace("job_id)", "scope, job_id)", 1)) == []


def test_the_api_does_not_import_what_takes_none() -> None:
    rooms = ("interactive/leases.py", "interactive/preview_claims.py", "searches/trials.py")
    machinery = {path for path in MACHINERY if path.startswith(("jobs/", "tracking/", "files/"))}
    unscoped = {
        f"service.store.{path.removesuffix('.py').replace('/', '.')}"
        for path in machinery | {*rooms}
    }
    for file in (STORE.parent / "api").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                assert not unscoped & {node.module, *named}, file
