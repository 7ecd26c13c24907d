"""Confines this process to a view, with every layer that the view names."""

import os
import sys
from typing import NoReturn

from service.contract.stage.stages import EVENT_FD_VARIABLE
from worker.sandbox import landlock, namespaces
from worker.sandbox import system_calls as sys_
from worker.sandbox.view import Layer, View

_EXIT_FAILED = 1


def enter(view: View) -> None:
    """Must be called while this process has one thread. OSError if the kernel refuses.

    With namespaces it returns in a child; this process then waits for that one, and ends like it.
    """
    if not view.layers:
        return
    view = view.existing()
    if Layer.NAMESPACES in view.layers:
        namespaces.enter(view)
    sys_.drop_capabilities()
    if Layer.LANDLOCK in view.layers:
        landlock.restrict(view)


def report(error: OSError) -> NoReturn:
    """Report that this process could not be confined, and end it."""
    from service.contract.failures import Failure, FailureCode
    from service.contract.stage.events import Failed

    message = f"The stage could not be confined: {error}"
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    descriptor = os.environ.get(EVENT_FD_VARIABLE)
    if descriptor is not None:
        event = Failed(failure=Failure.from_code(FailureCode.SANDBOX_INCOMPLETE, message))
        os.write(int(descriptor), event.model_dump_json().encode() + b"\n")
    os._exit(_EXIT_FAILED)
