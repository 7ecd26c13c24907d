"""Seals the secrets of projects with the operator's keys, which lie in a file of their own.

Each line of the file is a key of Fernet (128-bit AES with an HMAC). The first one seals, all of
them open. Project and name are sealed with the value: a row that is moved does not open.
"""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from service.system.durable_files import sync_folder


class SecretUnreadableError(Exception):
    """The key file is missing, or does not have the key that the secret was sealed with."""


class SecretBox:
    """Reads the key file at each use: it changes when keys are rotated."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file

    def seal(self, project: str, name: str, value: str) -> str:
        """Makes the key file if there is none."""
        if not self._key_file.exists():
            self._make()
        content = json.dumps({"project": project, "name": name, "value": value})
        return self._fernet().encrypt(content.encode()).decode()

    def open(self, project: str, name: str, sealed: str) -> str:
        """Raises SecretUnreadableError."""
        try:
            content = json.loads(self._fernet().decrypt(sealed.encode()))
        except InvalidToken:
            raise SecretUnreadableError(
                f"The secret {name!r} was not sealed with a key of FINETUNE_SECRETS_KEY_FILE."
            ) from None
        if (content["project"], content["name"]) != (project, name):
            raise SecretUnreadableError(f"The secret {name!r} was sealed under another name.")
        return str(content["value"])

    def seal_again(self, project: str, name: str, sealed: str) -> str:
        """The same value, sealed with the first key. Raises SecretUnreadableError."""
        return self.seal(project, name, self.open(project, name, sealed))

    def add_key(self) -> None:
        """A new first key; the others still open what they have sealed."""
        self._write([Fernet.generate_key().decode(), *self._keys()])

    def forget_old_keys(self) -> None:
        self._write(self._keys()[:1])

    def _fernet(self) -> MultiFernet:
        keys = self._keys()
        if not keys:
            raise SecretUnreadableError(
                "The key file of FINETUNE_SECRETS_KEY_FILE does not exist or is empty: restore it "
                "from a backup, or set the secrets again."
            )
        try:
            return MultiFernet([Fernet(key) for key in keys])
        except ValueError:
            raise SecretUnreadableError(
                "The key file of FINETUNE_SECRETS_KEY_FILE has a line that is not a Fernet key."
            ) from None

    def _keys(self) -> list[str]:
        try:
            return self._key_file.read_text().split()
        except FileNotFoundError:
            return []

    def _make(self) -> None:
        """The first process or thread that needs the file makes it; the others find it."""
        self._key_file.parent.mkdir(parents=True, exist_ok=True)
        made = self._temporary([Fernet.generate_key().decode()])
        try:
            with suppress(FileExistsError):
                os.link(made, self._key_file)
        finally:
            made.unlink()
        sync_folder(self._key_file.parent)

    def _write(self, keys: list[str]) -> None:
        self._temporary(keys).replace(self._key_file)
        sync_folder(self._key_file.parent)

    def _temporary(self, keys: list[str]) -> Path:
        """Of this call alone: several threads may need the first key at once."""
        folder, prefix = self._key_file.parent, f"{self._key_file.name}."
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=prefix)  # mode 0600
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(f"{key}\n" for key in keys))
            file.flush()
            os.fsync(file.fileno())
        return Path(name)
