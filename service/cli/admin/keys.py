"""`finetune keys`: operators' keys in the database itself, a project's through the API."""

from datetime import timedelta
from typing import Annotated

import typer

from service.cli.admin import project_keys
from service.cli.terminal import durations, local_database, output
from service.cli.terminal.client import Json, chosen_project
from service.cli.terminal.exit_codes import UsageError
from service.contract.roles import Permission
from service.store.database import clock
from service.store.projects import keys
from service.store.tables.projects import ApiKeyRow

app = typer.Typer(
    no_args_is_help=True,
    help="API keys: of operators in the service's database, of a project with --project.",
)


def _row(key: ApiKeyRow) -> Json:
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    moments = {name: getattr(key, name) for name in times}
    return {
        "id": key.id,
        "name": key.name,
        "project": key.project_id,
        "role": key.role,
        "scopes": key.scopes,
        **{name: at.isoformat() if at else None for name, at in moments.items()},
    }


Project = Annotated[
    str | None,
    typer.Option(help="Of this project, through the API; also FINETUNE_PROJECT."),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use it.")],
    project: Project = None,
    role: Annotated[
        str, typer.Option(help="viewer, member or admin; only for a project's key.")
    ] = "member",
    member: Annotated[
        str | None, typer.Option(help="Whose key it is; only for a project's key.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="Narrows it, for example jobs:read; may be repeated.")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="When: 24h, 30d …")] = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Make a key. It is shown this once: only its hash is kept.

    Without a project it is an operator's, and is written to the database itself.
    """
    lifetime = None if expires is None else durations.seconds(expires)
    owner = project or chosen_project()
    if owner is not None:
        given = {"role": role, "member": member, "expires_in_seconds": lifetime}
        made = project_keys.create(owner, name, {**given, "scopes": scope})
    else:
        made = _create_operators(name, scope, lifetime)
    _show_made(made, as_json=json)


def _create_operators(name: str, scopes: list[str] | None, lifetime: int | None) -> Json:
    unknown = set(scopes or ()) - set(Permission)
    if unknown:
        raise UsageError(f"unknown scope {min(unknown)!r}; there are {', '.join(Permission)}")
    with local_database.opened() as database, database.write() as session:
        ends = None if lifetime is None else clock(session) + timedelta(seconds=lifetime)
        row, key = keys.create(session, name, keys.Grant(scopes=scopes, expires_at=ends))
        local_database.note(session, "create_key", row.id)
        return {**_row(row), "key": key}


def _show_made(made: Json, *, as_json: bool) -> None:
    if as_json:
        output.print_json(made)
        return
    output.print_line(made["key"])
    output.note(f"{made['id']}: keep the key, it cannot be shown again. FINETUNE_API_KEY holds it.")


@app.command("list")
def list_keys(project: Project = None, *, json: output.AsJson = False) -> None:
    """List all keys ever made, without the secrets."""
    owner = project or chosen_project()
    if owner is not None:
        rows = project_keys.list_all(owner)
    else:
        with local_database.opened() as database, database.read() as session:
            rows = [_row(row) for row in keys.list_all(session)]
    columns = ("id", "name", "project", "role", "created_at", "expires_at", "last_used_at")
    output.print_rows({"data": rows}, (*columns, "revoked_at"), rows, as_json=json)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Its id, or its name if no other key has it.")],
    project: Project = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Revoke a key."""
    owner = project or chosen_project()
    if owner is not None:
        key_id = project_keys.revoke(owner, key)["id"]
    else:
        with local_database.opened() as database, database.write() as session:
            row = _the_one(key, keys.active(session, key))
            keys.revoke(session, row.id)
            local_database.note(session, "revoke_key", row.id, row.project_id)
            key_id = row.id
    output.print_answer({"id": key_id, "revoked": True}, f"{key_id} is revoked", as_json=json)


@app.command()
def rotate(
    key: Annotated[str, typer.Argument(help="Its id, or its name if no other key has it.")],
    grace: Annotated[str, typer.Option(help="How long the old key works on.")] = "24h",
    project: Project = None,
    *,
    json: output.AsJson = False,
) -> None:
    """Make a key with the same rights; the old one works until the grace time is over."""
    seconds = durations.seconds(grace)
    owner = project or chosen_project()
    if owner is not None:
        made = project_keys.rotate(owner, key, seconds)
    else:
        with local_database.opened() as database, database.write() as session:
            old = _the_one(key, keys.active(session, key))
            row, text = keys.rotate(session, old, seconds)
            local_database.note(session, "rotate_key", old.id, old.project_id)
            made = {**_row(row), "key": text}
    _show_made(made, as_json=json)


def _the_one(key: str, found: list[ApiKeyRow]) -> ApiKeyRow:
    if not found:
        raise UsageError(f"there is no active key {key!r}; see `finetune keys list`")
    if len(found) > 1:
        lines = (f"  {row.id}  created {row.created_at:%Y-%m-%d %H:%M:%S} UTC" for row in found)
        raise UsageError(
            "\n".join([f"several keys are called {key!r}; give the id of one:", *lines])
        )
    return found[0]
