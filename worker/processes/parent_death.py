"""A process that must not outlive the one that started it.

`python -m worker.processes.parent_death <parent> <module> <arguments>` runs a module as `python -m`
does, bound to the process `parent` from its first moment on, before any long import.
"""

import os
import runpy
import sys

from worker.processes import linux


def die_with_parent(parent: int, status: int = 1) -> None:
    """End with `parent`, which started this process; with `status` if it has ended already.

    The kernel forgets this at a fork: each process asks for itself.
    """
    if not linux.die_with_parent(parent):
        os._exit(status)


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
