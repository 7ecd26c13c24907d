"""How a new process gets into a control group (cgroup v2) before it can start another one."""

from pathlib import Path
from typing import Final

_MEMBERS: Final = "cgroup.procs"
# 0 stands for the process that writes it. A shell, because Python would have to run code between
# the fork and the exec, which is not safe in a process with threads.
_JOIN: Final = 'echo 0 > "$0" && exec "$@"'


def joining(command: list[str], group: Path | None) -> list[str]:
    """`command` in a form that joins the group first; with the same pid."""
    if group is None:
        return command
    return ["/bin/sh", "-c", _JOIN, str(group / _MEMBERS), *command]


def put(pid: int, group: Path | None) -> None:
    """Put a process that waits into the group."""
    if group is not None:
        (group / _MEMBERS).write_text(str(pid))
