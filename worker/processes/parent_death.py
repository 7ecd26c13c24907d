"""Runs a module in a process that ends with its parent.

`python -m worker.processes.parent_death <parent> <module> <arguments>` runs a module like
`python -m`, and ends with the process `parent` from the start, even during a long import.
"""

import runpy
import sys

from service.system.prctl import die_with_parent


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
