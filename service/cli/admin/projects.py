"""`finetune projects` and `finetune members`: who owns jobs and files, and who works in it."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.exit_codes import UsageError

app = typer.Typer(no_args_is_help=True, help="Projects own jobs, files and keys.")
members_app = typer.Typer(no_args_is_help=True, help="The people of a project.")

Project = Annotated[str, typer.Argument(help="Its name or id.")]
Weight = Annotated[
    float | None, typer.Option(help="Its share of the workers, relative to other projects.")
]
Limit = Annotated[str | None, typer.Option(help="A number, or `none` for no limit.")]
Highest = Annotated[
    str | None, typer.Option(help="The smallest priority that its jobs may have, or `none`.")
]
_COLUMNS = ("id", "name", "weight", "max_gpus", "max_queued_jobs", "max_bytes", "archived_at")


@app.command("list")
def list_projects(*, json: output.AsJson = False) -> None:
    """Your project, or as an operator all of them."""
    with Client.from_environment() as client:
        found = client.get("/v1/projects")
    output.print_rows(found, _COLUMNS, found["data"], as_json=json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits, - and _.")],
    weight: Weight = None,
    max_gpus: Limit = None,
    max_queued_jobs: Limit = None,
    max_bytes: Limit = None,
    max_requests_per_second: Limit = None,
    highest_priority: Highest = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Make a project. For operators."""
    limits = _limits(
        weight=weight,
        max_gpus=max_gpus,
        max_queued_jobs=max_queued_jobs,
        max_bytes=max_bytes,
        max_requests_per_second=max_requests_per_second,
        highest_priority=highest_priority,
    )
    with Client.from_environment() as client:
        _show(client.change("POST", "/v1/projects", {"name": name, **limits}), as_json=json)


@app.command()
def show(project: Project, *, json: output.AsJson = False) -> None:
    """One project and its limits."""
    with Client.from_environment() as client:
        _show(client.get(_path(project)), as_json=json)


@app.command("set")
def set_limits(
    project: Project,
    weight: Weight = None,
    max_gpus: Limit = None,
    max_queued_jobs: Limit = None,
    max_bytes: Limit = None,
    max_requests_per_second: Limit = None,
    highest_priority: Highest = None,
    *,
    archived: Annotated[
        bool | None, typer.Option(help="Whether it takes no new jobs and files.")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Change limits; those that are not given stay. For operators."""
    changes = _limits(
        weight=weight,
        max_gpus=max_gpus,
        max_queued_jobs=max_queued_jobs,
        max_bytes=max_bytes,
        max_requests_per_second=max_requests_per_second,
        highest_priority=highest_priority,
    )
    if archived is not None:
        changes["archived"] = archived
    if not changes:
        raise UsageError("nothing to change: give a limit, for example --max-gpus 4")
    _change(project, changes, as_json=json)


@app.command()
def rename(
    project: Project,
    name: Annotated[str, typer.Argument(help="The new name.")],
    *,
    json: output.AsJson = False,
) -> None:
    """Give a project another name; in MLflow it keeps the first one. For operators."""
    _change(project, {"name": name}, as_json=json)


@app.command()
def archive(project: Project, *, json: output.AsJson = False) -> None:
    """Take no new jobs and files; what the project has stays. For operators."""
    _change(project, {"archived": True}, as_json=json)


def _change(project: str, changes: dict[str, Any], *, as_json: bool) -> None:
    with Client.from_environment() as client:
        _show(client.change("PATCH", _path(project), changes), as_json=as_json)


def _limits(**given: float | str | None) -> dict[str, Any]:
    return {name: _number(name, value) for name, value in given.items() if value is not None}


def _number(name: str, value: float | str) -> float | None:
    if isinstance(value, float) or value == "none":
        return None if value == "none" else float(value)
    try:
        return float(value) if name == "max_requests_per_second" else int(value)
    except ValueError:
        raise UsageError(f"--{name.replace('_', '-')} must be a number or `none`") from None


def _path(project: str) -> str:
    return f"/v1/projects/{_segment(project)}"


def _segment(text: str) -> str:
    """Part of a path; a name may hold anything."""
    return quote(text, safe="")


def _show(project: Json, *, as_json: bool) -> None:
    output.print_rows(project, _COLUMNS, [project], as_json=as_json)


# ---- members ------------------------------------------------------------------------------------


def _members(client: Client) -> str:
    project = client.project or client.get("/v1/me")["makes_in"]
    return f"{_path(project)}/members"


@members_app.command("list")
def list_members(*, json: output.AsJson = False) -> None:
    """The members of your project, or of the one that --project names."""
    with Client.from_environment() as client:
        found = client.get(_members(client))
    output.print_rows(found, ("id", "name", "role", "created_at"), found["data"], as_json=json)


@members_app.command()
def add(
    name: Annotated[str, typer.Argument(help="For example an e-mail address.")],
    role: Annotated[str, typer.Option(help="viewer, member or admin.")] = "member",
    *,
    json: output.AsJson = False,
) -> None:
    """Add a person; `finetune keys create --member NAME` makes a key for them."""
    with Client.from_environment() as client:
        made = client.change("POST", _members(client), {"name": name, "role": role})
    _show_member(made, as_json=json)


@members_app.command("set")
def set_role(
    member: Annotated[str, typer.Argument(help="Name or id.")],
    role: Annotated[str, typer.Option(help="viewer, member or admin.")],
    *,
    json: output.AsJson = False,
) -> None:
    """Change a person's role; their keys may do no more than it, and gain nothing."""
    with Client.from_environment() as client:
        path = f"{_members(client)}/{_segment(member)}"
        changed = client.change("PATCH", path, {"role": role})
    _show_member(changed, as_json=json)


def _show_member(member: Json, *, as_json: bool) -> None:
    if as_json:
        output.print_json(member)
    else:
        name, role, project = member["name"], member["role"], member["project"]
        output.print_line(f"{member['id']}  {name} is {role} of {project}")


@members_app.command()
def remove(
    member: Annotated[str, typer.Argument(help="Name or id.")], *, json: output.AsJson = False
) -> None:
    """Remove a person and revoke all their keys."""
    with Client.from_environment() as client:
        removed = client.change("DELETE", f"{_members(client)}/{_segment(member)}")
    output.print_answer(
        removed,
        f"{removed['id']} is removed; keys revoked: {len(removed['revoked_keys'])}",
        as_json=json,
    )
