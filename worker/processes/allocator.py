"""The memory allocator that stages run with: a preloaded one, or the C library's.

A training allocates and frees large tensors in every step. By default the C library returns such
memory to the kernel and faults it in again; other allocators keep it, and so does the C library
with the right settings.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from service.system import child_environment

AUTO: Final = "auto"
SYSTEM: Final = "system"
KEEPING: Final = "glibc"
"""The C library's, set to keep freed memory: the result of `auto` without a library."""
KNOWN: Final = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
"""The libraries that `auto` tries, in this order, by the names that the loader knows. Not jemalloc:
set to keep memory it grows without limit when shapes keep changing, and otherwise it is slower than
the C library's."""

_PRELOAD: Final = "LD_PRELOAD"
_MAPS: Final = Path("/proc/self/maps")
_ALLOCATOR: Final = re.compile(r"/(lib\w*malloc\w*\.so[.\d]*)$", re.MULTILINE)
_OPTIONS: Final = {
    # Otherwise tcmalloc writes a line to the job's log for each allocation of a gigabyte.
    "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "0",
    # Otherwise jemalloc returns large tensors to the kernel at once.
    "MALLOC_CONF": "oversize_threshold:0",
}
# Tensors of up to 256 MiB come from the heap, whose free end may stay as large as 4 GiB.
_KEEP: Final = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=268435456:glibc.malloc.trim_threshold=4294967296"
}
# A new process, because some allocators can only be loaded at start-up, and because this process
# must not have it.
_PROBE: Final = (sys.executable, "-I", "-S", "-c", "")
_PROBE_SECONDS: Final = 30.0


class AllocatorError(Exception):
    """The library named in the settings cannot be loaded; the message explains what to do."""


def find(wanted: str, *, with_gpu: bool) -> str:
    """Resolve FINETUNE_MALLOC to a library, `system` or KEEPING. Raises AllocatorError."""
    if wanted == AUTO:
        return SYSTEM if with_gpu else _first_known()
    fault = "" if wanted == SYSTEM else _fault(wanted)
    if fault:
        raise AllocatorError(
            f"FINETUNE_MALLOC is {wanted}, which cannot be preloaded ({fault}): "
            f"set it to the path of a library that can, to `{AUTO}`, or to `{SYSTEM}`"
        )
    return wanted


def preloading(malloc: str, environment: dict[str, str]) -> dict[str, str]:
    """`environment` for a process with the allocator that `find` returned; it is loaded before the
    libraries that the environment preloads already.

    `auto` that `find` has not resolved changes nothing.
    """
    if malloc in (AUTO, SYSTEM):
        return environment
    if malloc == KEEPING:
        return _KEEP | environment
    earlier = environment.get(_PRELOAD)
    preload = f"{malloc}:{earlier}" if earlier else malloc
    return _OPTIONS | environment | {_PRELOAD: preload}


def loaded() -> str | None:
    """The file of the allocator that this process was started with; None: the C library's."""
    found = _ALLOCATOR.search(_MAPS.read_text()) if _MAPS.exists() else None
    return found and found[1]


def _first_known() -> str:
    """Also `system` if the operator preloads an allocator already."""
    if "malloc" in os.environ.get(_PRELOAD, ""):
        return SYSTEM
    return next((name for name in KNOWN if not _fault(name)), KEEPING)


def _fault(library: str) -> str:
    """Why a process cannot be started with the library; empty when it can."""
    if sys.platform != "linux":
        return "only on Linux"
    try:
        done = subprocess.run(
            _PROBE,
            env={**child_environment.allowed(os.environ), _PRELOAD: library},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a process with it does not end within {_PROBE_SECONDS:g} s"
    if done.returncode:
        return f"a process with it ends with status {done.returncode}"
    # The loader only prints a warning with the library's name, and continues without it.
    warning = next((line for line in done.stderr.splitlines() if library in line), "")
    reason = re.search(r"\((.*)\)", warning)
    return reason[1] if reason else warning
