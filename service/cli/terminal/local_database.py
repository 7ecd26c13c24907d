"""The service's own database, for the commands of the operator on its machine."""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from service.contract.roles import Role
from service.settings import get_settings
from service.store import schema
from service.store.database import Database
from service.store.projects import audit


@contextmanager
def opened() -> Iterator[Database]:
    with Database(get_settings().sqlalchemy_url) as database:
        # A key can be made before the service has ever run.
        schema.upgrade(database.engine)
        yield database


def note(
    session: Session, action: str, target: str | None = None, project_id: str | None = None
) -> None:
    """Write to the audit log, in the transaction of the change, what this user's command does."""
    entry = audit.Entry(
        action,
        target,
        project_id,
        key_name=_user(),
        role=Role.OPERATOR,
        client="cli",
    )
    audit.write(session, entry)


def _user() -> str:
    """From the process itself: users can set the variables of the environment to anything."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # as in a container
        return str(uid)
