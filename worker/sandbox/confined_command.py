"""The command that starts another one within a view."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from service.system import own_packages
from worker.sandbox.view import View


@contextmanager
def confined(command: list[str], view: View | None) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """`command` in a form that confines itself first, and the descriptors that it must inherit."""
    if view is None or not view.layers:
        yield command, ()
        return
    reader, writer = os.pipe()
    try:
        os.write(writer, view.to_json().encode())
        os.close(writer)
        program = own_packages.python("worker.sandbox.run_confined", str(reader))
        yield [*program, *command], (reader,)
    finally:
        os.close(reader)
