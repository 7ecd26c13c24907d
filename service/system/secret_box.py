"""Seals the secrets of projects with the operator's keys, which lie in a file of their own.

Each line of the file is a key of Fernet (128-bit AES with an HMAC). The first one seals, all of
them open. Project and name are sealed with the value: a row that is moved does not open. In front
of a sealed value stands the fingerprint of its key, so that a machine with another key notices.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from service.system.durable_files import sync_folder

_MARK: Final = ":"
"""Between the fingerprint and the token, whose alphabet does not have it."""


class SecretUnreadableError(Exception):
    """The key file is missing, or does not have the key that the secret was sealed with."""


class WrongKeyError(SecretUnreadableError):
    """The key file has keys, and not the one that the others use."""


class SecretBox:
    """Reads the key file at each use: it changes when keys are rotated."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file

    def seal(self, project: str, name: str, value: str) -> str:
        """Makes the key file if there is none."""
        if not self._key_file.exists():
            self._make()
        keys = self._keys()
        content = json.dumps({"project": project, "name": name, "value": value})
        token = _fernet(keys).encrypt(content.encode()).decode()
        return f"{_fingerprint(keys[0])}{_MARK}{token}"

    def open(self, project: str, name: str, sealed: str) -> str:
        """Raises SecretUnreadableError."""
        token = sealed.rpartition(_MARK)[2]  # an older release wrote no fingerprint
        try:
            content = json.loads(_fernet(self._keys()).decrypt(token.encode()))
        except InvalidToken:
            raise SecretUnreadableError(
                f"The secret {name!r} was not sealed with a key of FINETUNE_SECRETS_KEY_FILE."
            ) from None
        if (content["project"], content["name"]) != (project, name):
            raise SecretUnreadableError(f"The secret {name!r} was sealed under another name.")
        return str(content["value"])

    def require_key_of(self, sealed: str) -> None:
        """Raises WrongKeyError if the file has keys, but not the one that has sealed this, and
        OSError if it cannot be read. A secret of a release that wrote no fingerprint passes, and so
        does a machine without a file."""
        expected, mark, _ = sealed.partition(_MARK)
        known = [_fingerprint(key) for key in self._keys()]
        if mark and known and expected not in known:
            raise WrongKeyError(
                f"The key in {self._key_file} has the fingerprint {', '.join(known)}, but the "
                f"secrets of this service are sealed with the key {expected}. Copy the file from "
                "the machine of the API: all machines need the same one "
                "(FINETUNE_SECRETS_KEY_FILE)."
            )

    def seal_again(self, project: str, name: str, sealed: str) -> str:
        """The same value, sealed with the first key. Raises SecretUnreadableError."""
        return self.seal(project, name, self.open(project, name, sealed))

    def add_key(self) -> None:
        """A new first key; the others still open what they have sealed."""
        self._write([Fernet.generate_key().decode(), *self._keys()])

    def forget_old_keys(self) -> None:
        self._write(self._keys()[:1])

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


def _fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def _fernet(keys: Sequence[str]) -> MultiFernet:
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
