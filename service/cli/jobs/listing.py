"""`finetune list|get`: show jobs."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final

import typer

from service.cli.jobs import page as job_page
from service.cli.jobs import table
from service.cli.terminal import output
from service.cli.terminal.client import ApiError, Client, Json
from service.contract.states import JobState

_NAMED_FILES: Final = 10
"""`get` asks for the names of at most this many files; it shows the ids of the others."""


def list_jobs(
    state: Annotated[
        list[JobState] | None, typer.Option(help="May be given several times.")
    ] = None,
    task: str | None = None,
    name: str | None = None,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    after: Annotated[str | None, typer.Option(help="Start after this job id.")] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Jobs, the newest first.

    At a terminal the ids are cut to what commands need; elsewhere the columns are separated by
    tabs, and nothing is cut.
    """
    wanted = {
        "state": [item.value for item in state or []],
        "task": task,
        "name": name,
        "after": after,
    }
    given = {key: value for key, value in wanted.items() if value}
    with Client.from_environment() as client:
        if after:
            given["after"] = client.job_id(after)
        page = client.get("/v1/jobs", {"limit": limit, **given})
        if json:
            output.print_json(page)
            return
        console = output.stdout()
        if not console.is_terminal:
            output.print_lines(table.for_scripts(page["data"]))
        else:
            is_filtered = bool(given.keys() - {"after"})
            shown = _short_ids(client, page, given, is_filtered=is_filtered)
            now = datetime.now(UTC)
            console.print(table.for_terminal(page["data"], shown, console.width, now))
    output.note_more(page)


def _short_ids(client: Client, page: Json, given: Json, *, is_filtered: bool) -> list[str]:
    """Of the jobs of a page. The one before the first and the one after the last must not begin
    like these."""
    ids = [job["id"] for job in page["data"]]
    others = [given["after"]] if "after" in given else []
    if page["has_more"] and not is_filtered:
        following = client.get("/v1/jobs", {"limit": 1, "after": ids[-1]})["data"]
        others += [job["id"] for job in following]
    return table.short_ids(ids, others, is_filtered=is_filtered)


def get_job(job_id: str, *, json: output.AsJson = False) -> None:
    """Everything about one job."""
    with Client.from_environment() as client:
        job_id = client.job_id(job_id)
        job = client.get(f"/v1/jobs/{job_id}")
        if json:
            output.print_json(job)
            return
        events = list(client.pages(f"/v1/jobs/{job_id}/events", cursor="seq"))
        file_names = _file_names(client, job["spec"]["dataset"])
    job_page.show(output.stdout(), job, events, file_names)


def _file_names(client: Client, dataset: Json) -> dict[str, str]:
    """By file id, of the first uploads and only of those that still exist."""
    if dataset["source"] != "upload":
        return {}
    found = {}
    for file_id in job_page.files_of(dataset)[:_NAMED_FILES]:
        try:
            found[file_id] = client.get(f"/v1/files/{file_id}")["filename"]
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    return found
