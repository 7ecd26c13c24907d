"""Which memory allocator stages run with: one that is loaded before the C library's, or that one.

A training allocates and frees large tensors in every step. The C library by itself gives such
memory back to the kernel and faults it in again; the others keep it, and so does the C library
where it is told to.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

AUTO: Final = "auto"
SYSTEM: Final = "system"
KEEPING: Final = "glibc"
"""The C library's, told to keep what is freed: what `auto` comes to without a library."""
KNOWN: Final = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
"""What `auto` looks for, by the names that the loader knows; the first that is there. jemalloc is
not among them: told to keep its memory it grows without end where shapes are ever new, and else it
is slower than the C library's (docs/performance.md)."""

_PRELOAD: Final = "LD_PRELOAD"
_MAPS: Final = Path("/proc/self/maps")
_ALLOCATOR: Final = re.compile(r"/(lib\w*malloc\w*\.so[.\d]*)$", re.MULTILINE)
_OPTIONS: Final = {
    # Else tcmalloc writes a line to the job's log for each allocation of a gigabyte.
    "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "0",
    # Else jemalloc gives large tensors back to the kernel at once.
    "MALLOC_CONF": "oversize_threshold:0",
}
# Tensors of up to 256 MiB come from the heap, whose free end may stay as large as 4 GiB.
_KEEP: Final = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=268435456:glibc.malloc.trim_threshold=4294967296"
}
# A new process, because some allocators can only be loaded at a start, and because this one is not
# to have it.
_PROBE: Final = (sys.executable, "-I", "-S", "-c", "")
_PROBE_SECONDS: Final = 30.0


class AllocatorError(Exception):
    """The library that the settings name cannot be had; says what to do."""


def find(wanted: str, *, with_gpu: bool) -> str:
    """What FINETUNE_MALLOC comes to here: a library, `system` or KEEPING. Raises AllocatorError."""
    if wanted == AUTO:
        return SYSTEM if with_gpu else _first_known()
    fault = "" if wanted == SYSTEM else _fault(wanted)
    if fault:
        raise AllocatorError(
            f"FINETUNE_MALLOC is {wanted}, which cannot be preloaded ({fault}): "
            f"give the path of a library that can, or `{AUTO}`, or `{SYSTEM}`"
        )
    return wanted


def preloading(malloc: str, environment: dict[str, str]) -> dict[str, str]:
    """`environment` for a process that has what `find` found; what it preloads itself comes after.

    `auto` that nobody has looked for yet changes nothing.
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
    """`system`, too, where the operator preloads an allocator already."""
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
            env={**os.environ, _PRELOAD: library},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a process that has it does not end within {_PROBE_SECONDS:g} s"
    if done.returncode:
        return f"a process that has it ends with status {done.returncode}"
    # The loader only warns of what it leaves out, by its name, and goes on.
    warning = next((line for line in done.stderr.splitlines() if library in line), "")
    reason = re.search(r"\((.*)\)", warning)
    return reason[1] if reason else warning
