"""Checks for a C and a C++ compiler and Python's headers, which torch.compile and Triton need."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

from worker.doctor.check import Context, Finding, ok, warning

_SECONDS: Final = 60
# Like Triton's launchers, and like the code that torch's inductor generates for a CPU.
_C: Final = "#include <Python.h>\nint number(void) { return PY_MAJOR_VERSION; }\n"
_CPP: Final = "#include <vector>\nint number() { return std::vector<int>(3).size(); }\n"
_REMEDY: Final = (
    "Install them: `apt install gcc g++ libc6-dev python3-dev`, or their equivalents on your "
    "system (the worker's image has them). Only torch.compile, torchao and Triton kernels need "
    "them."
)


def compiler(context: Context) -> Finding:
    include = Path(sysconfig.get_path("include"))
    found = {"C": _first("CC", ("gcc", "clang", "cc")), "C++": _first("CXX", ("g++", "clang++"))}
    missing = [f"no {language} compiler" for language, path in found.items() if path is None]
    if not (include / "Python.h").is_file():
        missing.append(f"no Python.h in {include}")
    if missing:
        return _warn(", ".join(missing), "torch.compile and Triton compile code here.")
    assert found["C"] is not None
    assert found["C++"] is not None
    errors = [
        _compile_error(found["C"], "c", _C, context.scratch, (f"-I{include}",)),
        _compile_error(found["C++"], "cpp", _CPP, context.scratch, ("-fopenmp",)),
    ]
    if any(errors):
        return _warn("an installed compiler fails", "\n".join(filter(None, errors)))
    return ok(f"{found['C']}, {found['C++']} and Python.h work", **found)


def _warn(summary: str, reason: str) -> Finding:
    return warning(summary, reason=reason, remedy=_REMEDY)


def _first(variable: str, names: tuple[str, ...]) -> str | None:
    """The program that the variable names, else the first of `names` that is installed."""
    wanted = os.environ.get(variable)
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, names)), None)


def _compile_error(
    compiler: str, suffix: str, code: str, folder: Path, options: tuple[str, ...]
) -> str:
    """The compiler's error for a small shared library; empty if it compiles."""
    source = folder / f"number.{suffix}"
    source.write_text(code, encoding="utf-8")
    command = [compiler, str(source), "-shared", "-fPIC", "-o", f"{source}.so", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    return f"{compiler}: {done.stderr[-1000:].strip()}" if done.returncode else ""
