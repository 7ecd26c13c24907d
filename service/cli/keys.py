"""`finetune keys`: works on the database itself, for the operator of the service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from service.cli import output
from service.cli.exit_codes import UsageError
from service.settings import get_settings
from service.store import keys, schema
from service.store.database import Database
from service.store.models import ApiKeyRow

app = typer.Typer(no_args_is_help=True, help="API keys; needs access to the service's database.")


@contextmanager
def _database() -> Iterator[Database]:
    database = Database(get_settings().sqlalchemy_url)
    try:
        # A key can be made before the service has ever run.
        schema.upgrade(database.engine)
        yield database
    finally:
        database.dispose()


def _row(key: ApiKeyRow) -> dict[str, str | None]:
    return {
        "id": key.id,
        "name": key.name,
        "created_at": key.created_at.isoformat(),
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use it.")],
    *,
    json: output.AsJson = False,
) -> None:
    """Make a key. It is shown this once: only its hash is kept."""
    with _database() as database, database.write() as session:
        row, key = keys.create(session, name)
        made = {**_row(row), "key": key}
    if json:
        output.print_json(made)
        return
    typer.echo(key)
    output.note(f"{row.id}: keep the key, it cannot be shown again. FINETUNE_API_KEY holds it.")


@app.command("list")
def list_keys(*, json: output.AsJson = False) -> None:
    """List all keys ever made, without the secrets."""
    with _database() as database, database.read() as session:
        rows = [_row(row) for row in keys.list_all(session)]
    if json:
        output.print_json({"data": rows})
        return
    output.print_table(("id", "name", "created_at", "revoked_at"), rows)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Its id, or its name if no other key has it.")],
    *,
    json: output.AsJson = False,
) -> None:
    """Revoke a key."""
    with _database() as database, database.write() as session:
        row = _the_one(key, keys.active(session, key))
        keys.revoke(session, row.id)
        key_id = row.id
    if json:
        output.print_json({"id": key_id, "revoked": True})
    else:
        typer.echo(f"{key_id} is revoked")


def _the_one(key: str, found: list[ApiKeyRow]) -> ApiKeyRow:
    if not found:
        raise UsageError(f"there is no active key {key!r}; see `finetune keys list`")
    if len(found) > 1:
        lines = (f"  {row.id}  created {row.created_at:%Y-%m-%d %H:%M:%S} UTC" for row in found)
        raise UsageError(
            "\n".join([f"several keys are called {key!r}; give the id of one:", *lines])
        )
    return found[0]
