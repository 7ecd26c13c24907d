"""`python -P -m worker.sandbox.run_confined <fd> <command>`: runs a command within a view.

Reads the view from the descriptor. The command must not start before it holds, so this program
replaces itself by the command.
"""

import os
import sys
from typing import NoReturn

from service.system.prctl import die_with_parent
from worker.sandbox import confinement
from worker.sandbox.view import View


def main() -> NoReturn:
    die_with_parent(os.getppid())
    with os.fdopen(int(sys.argv[1]), "rb") as pipe:
        view = View.from_json(pipe.read())
    try:
        confinement.enter(view)
        os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
    except OSError as error:
        confinement.report(error)


if __name__ == "__main__":
    main()
