"""Reports that a stage could not be confined, and ends it."""

import os
import sys
from typing import NoReturn

from service.contract.stages import EVENT_FD_VARIABLE

_EXIT_FAILED = 1


def report(error: OSError) -> NoReturn:
    from service.contract.events import Failed
    from service.contract.failures import Failure, FailureCode

    message = f"The stage could not be confined: {error}"
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    descriptor = os.environ.get(EVENT_FD_VARIABLE)
    if descriptor is not None:
        event = Failed(failure=Failure.of(FailureCode.SANDBOX_INCOMPLETE, message))
        os.write(int(descriptor), event.model_dump_json().encode() + b"\n")
    os._exit(_EXIT_FAILED)
