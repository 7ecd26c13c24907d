"""A process that must not outlive the one that started it.

`python -m worker.processes.parent_death <parent> <module> <arguments>` runs a module as `python -m`
does, bound to the process `parent` from its first moment on, before any long import.
"""

import runpy
import sys

from service.prctl import die_with_parent


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
