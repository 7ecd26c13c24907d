"""The API key that `finetune up` makes for the user who started it.

It is kept in a file as an HTTP header, so that `curl --header @FILE` can send it without showing it
in the list of processes.
"""

from pathlib import Path
from typing import Final

from finetune_client import local_stack
from pydantic import SecretStr

from service.cli.terminal import local_database
from service.store.database import Database
from service.store.projects import keys
from service.system import private_file
from service.system.login_links import make_link

NAME: Final = "up"


def ensure(home: Path, database: Database) -> bool:
    """Make a key unless the one in the home still works; whether a new one was made."""
    kept = local_stack.read_key(home)
    if kept is not None:
        with database.connect() as connection:
            holder = keys.who(connection, kept)
        if holder is not None and not holder.is_expired:
            return False
    with database.write() as session:
        row, key = keys.create(session, NAME)
        local_database.note(session, "create_key", row.id)
        # Inside the transaction: if the file cannot be written, the key is not made either.
        private_file.write(local_stack.key_file(home), f"{local_stack.KEY_PREFIX}{key}\n")
    return True


def find(home: Path, url: str) -> SecretStr | None:
    """The key for `url`: only while the stack of this home runs and is what listens there."""
    key = local_stack.find_key(home, url)
    return SecretStr(key) if key else None


def login_url(home: Path, url: str) -> str | None:
    """A link that signs a browser in to MLflow's pages, once; None without a key for `url`."""
    key = find(home, url)
    return f"{url}/login#once={make_link(home, key.get_secret_value())}" if key else None
