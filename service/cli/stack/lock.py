"""One stack per home: a lock that ends with its process, and a file that says where it listens."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from finetune_client.local_stack import StackAddress as StackAddress
from finetune_client.local_stack import address_file
from finetune_client.local_stack import read_address as read_address

from service.cli.terminal.exit_codes import UsageError


@contextmanager
def hold(home: Path) -> Iterator[None]:
    """Hold the home's lock; raises UsageError at once if another process holds it."""
    path = home / "up.lock"
    descriptor = _acquire(path, home)
    try:
        yield
    finally:
        # Removed while still held: a process that opened this file meanwhile sees that it is not
        # the one at the path any more, and tries again.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, home: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            address = read_address(home)
            where = f" (process {address.pid}, {address.url})" if address else ""
            raise UsageError(f"a stack already runs in {home}{where}") from None
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


def write_address(home: Path, address: StackAddress) -> None:
    partial = home / "up.json.tmp"
    partial.write_text(json.dumps(address.model_dump(mode="json"), indent=2) + "\n")
    partial.replace(address_file(home))


def remove_address(home: Path) -> None:
    address_file(home).unlink(missing_ok=True)
